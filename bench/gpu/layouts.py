#!/usr/bin/env python3
"""Layouts of one host's GPUs, each as a job through coordinator and worker; a table last.

    bench/gpu/layouts.py --bin build/release/bin [--peers DIR] [--only NAME,...] [--out DIR] [--steps N]

Runs the lines of layouts.txt that fit the GPUs here. A job runs --steps steps; its rate is the tokens of a step over the
median seconds of the steps behind the fourth, the traced one left out. One step is traced on every rank (docs/formats/trace.md): the exposed
communication of the table is rank 0's share of that step in which something communicates and nothing computes. Memory is what rank 0
planned. Beside each job stands what `telar plan` had said of it: the step's time, how far off it was, and by how many bytes rank 0's
memory was. Peers: torch_llama.py under torchrun, as README.md says. Exit 0: all that ran ended well, met or not.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TRACED = 6


def read_lines(path):
    names = ("name", "preset", "sequence", "micro", "global", "parallel", "against", "target")
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield dict(zip(names, line.split()))


def degrees(line):
    found = dict(pair.split("=") for pair in line["parallel"].split(","))
    ranks = 1
    for axis in ("data", "tensor", "pipeline"):
        ranks *= int(found.get(axis, 1))
    return found, ranks


def write_tokens(path, count, vocab):
    """Random ids as an llm.c shard: version 7 holds 32-bit ids, version 1 16-bit ones."""
    import random
    generator = random.Random(1)
    wide = vocab > 65535
    with open(path, "wb") as file:
        header = [20240801, 7, count] if wide else [20240520, 1, count]
        file.write(struct.pack("<256i", *header, *([0] * 253)))
        for _ in range(0, count, 1 << 16):
            ids = [generator.randrange(vocab) for _ in range(1 << 16)]
            file.write(struct.pack(f"<{len(ids)}{'I' if wide else 'H'}", *ids))


def spec_of(line, tokens, steps):
    layout, ranks = degrees(line)
    preset, *changes = line["preset"].split("+")
    changes = dict(change.split("=") for change in changes)
    compute = changes.pop("compute", "bf16")
    model = {"preset": preset, **{key: int(value) for key, value in changes.items()}}
    typed = {key: value if key == "schedule" else json.loads(value) for key, value in layout.items()}
    return {
        "name": line["name"],
        "model": model,
        "data": {"train": [str(tokens)], "format": "LLMC_BIN"},
        "tokenizer": {"kind": "NONE"},
        "precision": {"compute": compute.upper()},
        "parallel": typed,
        "resources": {"devices": ranks, "kind": "GPU"},
        "batch": {"global": int(line["global"]), "micro": int(line["micro"]),
                  "sequence_length": int(line["sequence"])},
        "optimizer": {"learning_rate": 1e-4},
        "schedule": {"kind": "CONSTANT", "steps": steps},
        "checkpoint": {"at_end": False},
        "eval": {"sequences": int(line["micro"]) * 2},
        "restart": {"max_restarts": 0},
        "trace": {"steps": [TRACED]},
    }


class Service:
    def __init__(self, binaries, out, kind="gpu"):
        self.binaries, self.out, self.processes, self.ports = binaries, out, [], {}
        coordinator = self.start("coordinator", "telar-coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                 "--data", out / "coordinator", "--run-root", out / "runs")
        self.address = coordinator["listen"]
        self.start("worker", "telar-worker", "--coordinator", self.address, "--node", "a", "--state", out / "worker",
                   "--http", "127.0.0.1:0", "--rank-program", binaries / "telar-rank", "--device-kind", kind,
                   "--stop-ranks-on-exit")

    def start(self, name, program, *arguments):
        port_file = self.out / f"{name}.json"
        log = open(self.out / f"{name}.log", "w")
        command = [self.binaries / program, *arguments, "--port-file", port_file]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        for _ in range(300):
            if port_file.exists() and port_file.stat().st_size:
                self.ports[name] = json.loads(port_file.read_text())
                return self.ports[name]
            time.sleep(0.1)
        sys.exit(f"{name} did not start: {log.name}")

    def telar(self, *arguments, limit=600):
        return subprocess.run([self.binaries / "telar", "--coordinator", self.address, *arguments], text=True,
                              capture_output=True, timeout=limit)

    def submit(self, spec):
        """The job's id; ends the program if it is refused."""
        path = self.out / f"{spec['name']}.json"
        path.write_text(json.dumps(spec, indent=1))
        submitted = self.telar("submit", path)
        if submitted.returncode:
            sys.exit(f"{spec['name']}: {submitted.stderr.strip()}")
        return submitted.stdout.strip().split("/")[-1]

    def job(self, job):
        return json.loads(self.telar("describe", job, "-o", "json").stdout)

    def wait_for_devices(self):
        for _ in range(200):
            shown = self.telar("nodes", "--no-headers").stdout.split()
            if len(shown) > 2:
                return int(shown[2])
            time.sleep(0.1)
        sys.exit("no worker registered")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)


def forecast(binaries, traces, line, step_ms):
    """The simulator's step from the times that the traced step's actions took, and how far off the untraced one is."""
    stages, first, last = {}, None, 0.0
    transfers = []
    for trace in traces:
        for event in trace["traceEvents"]:
            found = re.match(r"s(\d+)\.mb(\d+)/", event.get("name", "")) if event.get("ph") == "X" else None
            if not found:
                continue
            if event["cat"] == "pipeline_comm":
                transfers.append(event["dur"])
            if event["tid"] != 0:
                continue
            kind = "F" if event["cat"] == "forward" else "W" if ".wgrad" in event["name"] else "I"
            times = stages.setdefault(int(found[1]), {}).setdefault(int(found[2]), {"F": 0, "I": 0, "W": 0})
            times[kind] += event["dur"]
            if event["pid"] == 0:
                first = event["ts"] if first is None else min(first, event["ts"])
                last = max(last, event["ts"] + event["dur"])
    layout, _ = degrees(line)
    costs = "/".join(",".join(f"{statistics.median(mb[kind] for mb in stages[stage].values()) / 1e3:.4f}"
                              for kind in ("F", "I", "W")) for stage in sorted(stages))
    micro_batches = int(line["global"]) // int(line["micro"])
    ran = subprocess.run([binaries / "bench_schedule", "--schedule", layout.get("schedule", "1f1b"), "--ranks",
                          layout["pipeline"], "--micro-batches", str(micro_batches), "--costs", costs, "--transfer",
                          f"{min(transfers) / 1e3:.4f}"], text=True, capture_output=True, check=True)
    told = json.loads(ran.stdout)
    outside = 1e3 * traces[0]["telar"]["seconds"] - (last - first) / 1e3
    made = told["makespan_ms"] + outside
    return {"stages_ms": costs, "forecast_ms": made, "off": step_ms / made - 1, "bubble": told["bubble"]}


def plan(service, spec, devices):
    """What `telar plan` says of a spec: milliseconds of a step, and the first pipeline rank's bytes by class."""
    ran = subprocess.run([service.binaries / "telar", "plan", spec, "--nodes", "1", "--devices-per-node", str(devices), "-o", "json"],
                         text=True, capture_output=True, timeout=120)
    told = json.loads(ran.stdout)
    memory = {one["memory_class"]: int(one["bytes"]) for one in told["ranks"][0]["memory"]}
    return 1e3 * told["step_seconds"], memory


def planned_memory(service, job):
    """Bytes by class that rank 0 reported at its start."""
    for path in sorted((service.out / "worker").glob(f"*/{job}.1.0/events.jsonl")):
        for text in path.read_text().splitlines():
            started = json.loads(text).get("started")
            if started:
                return {one["memory_class"]: int(one.get("bytes", 0)) for one in started["memory"]}
    return {}


def measure(service, line, tokens, steps):
    spec = service.out / f"{line['name']}.json"
    spec.write_text(json.dumps(spec_of(line, tokens, steps), indent=1))
    submitted = service.telar("submit", spec)
    if submitted.returncode:
        return {"error": submitted.stderr.strip()[-500:]}
    job = submitted.stdout.strip().split("/")[-1]
    try:
        watched = service.telar("watch", job, limit=150)
    except subprocess.TimeoutExpired:
        service.telar("cancel", job)
        return {"error": "took more than 150 s"}
    run = service.out / "runs" / job
    if watched.returncode:
        logs = service.telar("logs", job, "--rank", "0").stdout
        return {"error": (watched.stdout + watched.stderr + logs).strip()[-1500:]}
    reports = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    reports = [report for report in reports if "seconds" in report and "grad_norm" in report]
    seconds = [report["seconds"] for report in reports if report["step"] > 4 and abs(report["step"] - TRACED) > 1]
    step = statistics.median(seconds)
    result = {"tok_s": int(line["global"]) * int(line["sequence"]) / step, "step_ms": 1e3 * step,
              "loss": reports[-1]["loss"], "mfu": reports[-1].get("mfu", 0)}
    shutil.copy(run / "metrics.jsonl", service.out / f"{line['name']}.metrics.jsonl")
    result["plan_ms"], forecast_memory = plan(service, spec, degrees(line)[1])
    result["plan_off"] = result["plan_ms"] / result["step_ms"] - 1
    memory = planned_memory(service, job)
    result["plan_bytes_off"] = {name: forecast_memory[name] - count for name, count in memory.items()
                                if forecast_memory.get(name, 0) != count}
    result["bytes"] = sum(memory.values())
    traces = [run / "traces" / "rank-0" / f"trace-{TRACED}.json"]
    figures = json.loads(traces[0].read_text())["telar"]
    result["traced_ms"] = 1e3 * figures["seconds"]
    for key in ("compute", "communication", "exposed", "wait", "idle"):
        result[key + "_ms"] = 1e3 * figures[key]
    shutil.copy(traces[0], service.out / f"{line['name']}.trace.json")
    if "pipeline" in degrees(line)[0]:
        loaded = [json.loads(path.read_text()) for path in sorted((run / "traces").glob(f"rank-*/trace-{TRACED}.json"))]
        result.update(forecast(service.binaries, loaded, line, result["step_ms"]))
    started = service.telar("describe", job, "-o", "json").stdout
    (service.out / f"{line['name']}.describe.json").write_text(started)
    shutil.rmtree(run, ignore_errors=True)
    return result


def measure_peer(peers, how, line, out):
    command = ["torchrun", "--nproc_per_node=2", peers / "torch_llama.py", "--layers", "8", "--seq", line["sequence"],
               "--mbs", line["micro"], "--accum", "1", "--dp", how, "--steps", "10"]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=240)
    (out / f"torch-{how}.log").write_text(ran.stdout + ran.stderr)
    for text in reversed(ran.stdout.splitlines()):
        if text.startswith("{"):
            return json.loads(text)["tok_s"]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=14)
    options = parser.parse_args()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-layouts."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TELAR_TUNING_FILE", str(out / "tuning.tsv"))
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    service = Service(options.bin.resolve(), out)
    results, peers = {}, {}
    try:
        devices = service.wait_for_devices()
        shards = {}
        for line in read_lines(HERE / "layouts.txt"):
            if options.only and line["name"] not in options.only.split(","):
                continue
            if degrees(line)[1] > devices:
                continue
            vocab = 50257 if line["preset"].startswith("gpt2") else 128256
            if vocab not in shards:
                shards[vocab] = out / f"tokens-{vocab}.bin"
                write_tokens(shards[vocab], 1 << 22, vocab)
            start = time.time()
            result = measure(service, line, shards[vocab], options.steps)
            if line["against"].startswith("torch:") and options.peers:
                how = line["against"][6:]
                if how not in peers:
                    peers[how] = measure_peer(options.peers, how, line, out)
                result["against"] = peers[how]
            elif line["against"] in results:
                result["against"] = results[line["against"]].get("tok_s")
            results[line["name"]] = result
            print(f"{line['name']}: {time.time() - start:.0f} s {json.dumps(result)}", flush=True)
    finally:
        service.stop()
        (out / "results.json").write_text(json.dumps(results, indent=1))
    print(f"{'layout':18}{'tokens/s':>10}{'step ms':>9}{'ratio':>7}{'target':>8}{'exposed ms':>12}{'comm ms':>9}"
          f"{'plan ms':>9}{'off':>8}  GiB, plan's bytes off")
    for line in read_lines(HERE / "layouts.txt"):
        result = results.get(line["name"])
        if result is None:
            continue
        if "error" in result:
            print(f"{line['name']:18} failed: {result['error'].splitlines()[-1] if result['error'] else ''}")
            continue
        ratio = result["tok_s"] / result["against"] if result.get("against") else None
        print(f"{line['name']:18}{result['tok_s']:10.0f}{result['step_ms']:9.1f}"
              f"{'' if ratio is None else f'{ratio:.3f}':>7}{line['target']:>8}{result['exposed_ms']:12.1f}"
              f"{result['communication_ms']:9.1f}{result['plan_ms']:9.1f}{result['plan_off']:+8.1%}"
              f"  {result['bytes'] / 2**30:.2f}, {result['plan_bytes_off'] or 0}"
              + (f"  simulator {result['forecast_ms']:.1f} ms, off {100 * result['off']:+.1f} %" if "off" in result else ""))
    return 1 if any("error" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
