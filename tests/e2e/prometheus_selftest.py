#!/usr/bin/env python3
"""Shows that deploy/prometheus/prometheus.yml scrapes what Telar serves and that check_dashboards.py tells good from bad.

A stand-in serves every metric that the daemons have, with figures that move, at /metrics of a coordinator and of a worker found
through /sd/workers. A real Prometheus with our configuration (addresses and intervals changed) scrapes both. Then the checker
must accept the dashboards, and must reject planted ones. Exit 77: no prometheus here.
"""
import copy
import http.server
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import check_dashboards

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANKS = [dict(job_id="k3x9q2ab", rank=str(rank)) for rank in (0, 1)]


def line(name, value, /, **labels):
    inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"{name}{{{inside}}} {value}\n"


def histogram(name, count, bounds, /, **labels):
    """`count` observations, half below the second bound and the rest below the third."""
    text, below = "", [0, count / 2, count] + [count] * (len(bounds) - 3)
    for bound, value in zip(bounds, below):
        text += line(name + "_bucket", value, le=bound, **labels)
    return (text + line(name + "_bucket", count, le="+Inf", **labels) + line(name + "_sum", count * bounds[1], **labels) +
            line(name + "_count", count, **labels))


def coordinator_metrics(seconds):
    text = line("telar_build_info", 1, version="0.1.0", commit="abc", build_type="Release")
    text += "".join(line("telar_jobs", value, state=state) for state, value in (("RUNNING", 1), ("QUEUED", 0)))
    text += line("telar_job_info", 1, job_id="k3x9q2ab", name="selftest", model="gpt2-124m", devices="2", kind="CPU", dp="1",
                 tp="1", pp="2")
    text += line("telar_job_state", 1, job_id="k3x9q2ab", state="RUNNING")
    text += line("telar_job_restarts_total", int(seconds), reason="NODE_LOST")
    text += line("telar_job_step", int(4 * seconds), job_id="k3x9q2ab") + line("telar_job_straggler_ratio", 1.05, job_id="k3x9q2ab")
    text += line("telar_job_time_seconds", 1 + seconds, job_id="k3x9q2ab", kind="productive")
    text += line("telar_job_hangs_total", int(seconds / 9), named="true") + line("telar_job_stragglers_total", int(seconds / 9))
    text += "".join(line("telar_memory_forecast_bytes", 1e6, job_id="k3x9q2ab", pp=pp, **{"class": "weights"}) for pp in "01")
    text += line("telar_refused_calls_total", int(seconds / 9), reason="UNAUTHENTICATED") + line("telar_audit_lost_total", int(seconds / 9))
    text += line("telar_security_reload_failures_total", int(seconds / 9))
    text += line("telar_tls_certificate_expiry_timestamp_seconds", time.time() + 1e6)
    text += line("telar_log_missing_bytes_total", int(seconds))
    text += line("telar_nodes", 1, state="READY") + line("telar_devices", 2, kind="CPU", state="used")
    text += histogram("telar_queue_wait_seconds", int(seconds), (0.1, 1, 10))
    text += histogram("telar_rpc_seconds", int(10 * seconds), (0.001, 0.01, 0.1), method="Heartbeat")
    text += histogram("telar_manager_hold_seconds", int(20 * seconds), (0.0001, 0.001, 0.01), holder="round")
    text += line("telar_store_transactions_total", int(3 * seconds))
    text += histogram("telar_scheduler_round_seconds", int(4 * seconds), (0.001, 0.01, 0.1))
    return text + histogram("telar_store_commit_seconds", int(5 * seconds), (0.001, 0.01, 0.1))


def worker_metrics(seconds):
    now = time.time()
    text = line("telar_build_info", 1, version="0.1.0", commit="abc", build_type="Release")
    text += line("telar_worker_connected", 1) + line("telar_worker_heartbeat_timestamp_seconds", now)
    text += line("telar_worker_ranks", 2, state="running")
    text += line("telar_worker_rank_exits_total", int(seconds), **{"class": "CRASH"})
    text += line("telar_worker_log_lost_bytes_total", int(seconds)) + line("telar_device_used_bytes", 1e9, device="gpu:0")
    text += line("telar_device_faults_total", int(seconds / 9), device="gpu:0", code="xid-13")
    text += line("telar_telemetry_stale", 0) + line("telar_probe_restarts_total", int(seconds / 9))
    text += line("telar_telemetry_last_success_timestamp_seconds", now)
    for rank in RANKS:
        gauges = dict(loss=5 - 0.01 * seconds, eval_loss=5, grad_norm=1.5, learning_rate=1e-3, parameters=1.6e6,
                      device_peak_flops_per_second=1e9, checkpoint_last_success_timestamp_seconds=now - 3,
                      last_step_timestamp_seconds=now, consumed_samples=int(16 * seconds), loss_scale=1024,
                      checkpoint_last_durable_step=int(seconds), pipeline_bubble_theoretical_ratio=0.2)
        counters = dict(steps=seconds, tokens=2048 * seconds, checkpoint_saves=seconds / 5, checkpoint_bytes=1e6 * seconds,
                        nonfinite=int(seconds / 9), skipped_steps=int(seconds / 9), hardware_flops=2e8 * seconds,
                        checkpoint_failures=int(seconds / 9), checkpoint_stall_seconds=seconds / 99,
                        pipeline_window_seconds=seconds / 2)
        text += "".join(line("telar_" + name, value, **rank) for name, value in gauges.items())
        text += "".join(line(f"telar_{name}_total", value, **rank) for name, value in counters.items())
        text += line("telar_eval_source_loss", 5, source="books", **rank)
        text += line("telar_model_flops_total", 1e8 * seconds, convention="model", **rank)
        text += line("telar_pipeline_idle_seconds_total", seconds / 9, part="warmup", **rank)
        text += line("telar_comm_group_ranks", 2, group="shard", **rank)
        for name, value in (("bytes", 1e6), ("calls", 9), ("seconds", 0.1)):
            text += line(f"telar_comm_{name}_total", value * seconds, group="shard", op="all_reduce", **rank)
        text += histogram("telar_checkpoint_save_seconds", int(seconds / 2), (1, 2, 5), **rank)
        text += histogram("telar_step_seconds", int(4 * seconds), (0.1, 0.2, 0.4), **rank)
        text += "".join(line("telar_memory_bytes", 1e6, **{"class": name}, **rank) for name in ("weights", "activations"))
        text += "".join(line("telar_step_phase_seconds_total", seconds / 3, phase=phase, **rank)
                        for phase in ("forward", "grad_comm_exposed", "optimizer"))
        text += line("telar_rank_info", 1, node="a", device="cpu0", dp=rank["rank"], tp="0", pp="0", **rank)
    return text


def serve(pages):
    """A server on a free port; `pages` is path -> function that gives (content type, text)."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path not in pages:
                self.send_error(404)
                return
            content_type, text = pages[self.path]()
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def start_stand_ins():
    began = time.time()
    metrics = "text/plain; version=0.0.4"
    coordinator_metrics(1), worker_metrics(1)  # A mistake in them fails here, not in the server's threads.
    worker = serve({"/metrics": lambda: (metrics, worker_metrics(time.time() - began))})
    targets = json.dumps([{"targets": [f"127.0.0.1:{worker}"], "labels": {"node": "a"}}])
    return serve({"/metrics": lambda: (metrics, coordinator_metrics(time.time() - began)),
                  "/sd/workers": lambda: ("application/json", targets)})


def start_prometheus(folder, coordinator, options=()):
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    for theirs, ours, count in (("127.0.0.1:7071", f"127.0.0.1:{coordinator}", 2), ("scrape_interval: 5s", "scrape_interval: 1s", 1),
                                ("refresh_interval: 10s", "refresh_interval: 1s", 1)):
        assert config.count(theirs) == count, f"prometheus.yml: {theirs} stands there {config.count(theirs)} times"
        config = config.replace(theirs, ours)
    (folder / "prometheus.yml").write_text(config)
    (folder / "rules").mkdir()
    rules = (ROOT / "deploy/prometheus/rules/telar.yml").read_text()
    (folder / "rules/telar.yml").write_text(rules.replace("interval: 15s", "interval: 1s"))
    port = free_port()  # Prometheus does not say which port it bound, so 0 is of no use.
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}", *options], stdout=subprocess.DEVNULL, stderr=log)
    return process, f"http://127.0.0.1:{port}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_samples(url, process, log):
    """Until both targets have been scraped often enough for a rate."""
    query = "count_over_time(telar_loss[1m]) > 5 and on () count_over_time(telar_nodes[1m]) > 5"
    prometheus = check_dashboards.Prometheus(url)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if prometheus.get("query", query=query)["result"]:
                return
        except check_dashboards.QueryError:
            pass  # Not up yet.
        time.sleep(0.2)
    raise SystemExit(f"Prometheus has no samples after 60 s, or ended:\n{log.read_text()[-2000:]}")


def run_checker(url, *arguments):
    return subprocess.run([sys.executable, check_dashboards.__file__, "--prometheus", url, "--window", "60", *map(str, arguments)],
                          capture_output=True, text=True, check=False)


def planted(folder, name, expression=None, variable=None):
    """Our dashboard with one thing wrong."""
    dashboard = copy.deepcopy(json.loads((ROOT / "deploy/grafana/dashboards/telar-job.json").read_text()))
    panel = next(panel for panel in dashboard["panels"] if panel["title"] == "Loss")
    if expression is not None:
        panel["targets"][0]["expr"] = expression
    if variable is not None:
        dashboard["templating"]["list"][1]["query"]["query"] = variable
    path = folder / f"{name}.json"
    path.write_text(json.dumps(dashboard))
    return path


def check_the_checker(url, folder):
    good = run_checker(url)
    print(good.stdout + good.stderr, end="")
    wrong = [] if good.returncode == 0 else ["the dashboards as they are were rejected"]
    bad = [("missing", dict(expression="telar_no_such_metric"), "Loss (A): has no data"),
           ("nan", dict(expression='telar_loss * 0 / 0'), "Loss (A): has no data"),
           ("infinite", dict(expression="telar_loss / 0"), "Loss (A): has infinite values"),
           ("syntax", dict(expression="sum by (telar_loss"), "parse error"),
           ("unknown_variable", dict(expression='telar_loss{rank="$nobody"}'), "unknown variable $nobody"),
           ("empty_variable", dict(variable="label_values(telar_loss, nobody)"), "gives no value")]
    for name, change, complaint in bad:
        result = run_checker(url, planted(folder, name, **change))
        if result.returncode != 1 or complaint not in result.stderr:
            wrong.append(f"planted {name}: exit {result.returncode}, said {result.stderr!r}, wanted {complaint!r}")
    missing = planted(folder, "allowed", expression="telar_no_such_metric")
    for allow, code in (("Loss=none on this machine", 0), ("Loss=", 2), ("Nobody=why", 1)):
        result = run_checker(url, "--allow-empty", allow, missing if code == 0 else ROOT / "deploy/grafana/dashboards/telar-job.json")
        if result.returncode != code:
            wrong.append(f"--allow-empty {allow!r}: exit {result.returncode}, wanted {code}: {result.stderr}")
    return wrong


def main():
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("skipped: no prometheus; Debian's package prometheus has it")
        return 77
    subprocess.run(["promtool", "check", "config", ROOT / "deploy/prometheus/prometheus.yml"], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        coordinator = start_stand_ins()
        process, url = start_prometheus(folder, coordinator)
        try:
            wait_for_samples(url, process, folder / "log")
            wrong = check_the_checker(url, folder)
        finally:
            process.terminate()
            process.wait(timeout=20)
    for failure in wrong:
        print(failure, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
