"""A real Prometheus beside a running job: our configuration, our pages, our dashboards."""
import json
import re
import shutil
import subprocess
import sys
import unittest
import urllib.request

import check_dashboards
import prometheus_selftest
from cluster import Cluster, spec, wait_until

ALLOWED_EMPTY = {
    "MFU": "the peak of a CPU is unknown",
    "MFU by job": "the peak of a CPU is unknown",
    "Loss scale": "fp16 only",
    "Restarts": "nothing fails here",
    "Hangs and slow ranks": "nor hangs",
    "Device faults": "nothing fails here",
    "Telemetry": "the probe watches GPUs",
    "Device memory in use": "the probe watches GPUs",
    "Calls refused": "nobody is",
    "Certificates end in": "no TLS here",
    "Bus bandwidth": "a rule over five minutes, and the job's groups are pairs on one machine",
    "Stragglers": "after twenty steps of every rank, and not where nobody can tell",
    "Slowest over median": "the same",
}
# Exported and on no dashboard, and why.
DELIBERATE = {}


def fetch(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as response:
        return response.headers["Content-Type"], response.read().decode()


@unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "no prometheus; Debian's package prometheus has it")
class DashboardsTest(unittest.TestCase):
    def test_running_job(self):
        with Cluster(workers={"a": 1, "b": 2}) as cluster:
            sources = [dict(name=name, weight=weight, train=[str(cluster.text)]) for name, weight in (("books", 3), ("web", 1))]
            job = cluster.submit(spec(cluster.text, steps=100_000, checkpoint=dict(every_steps=50), eval=dict(every_steps=50),
                                      data=dict(train=[], sources=sources), parallel=dict(pipeline=2),
                                      batch=dict(micro=2), trace=dict(account_every=10)))
            cluster.wait_step(job, 60)
            self.check_pages(cluster)
            folder = cluster.folder / "prometheus"
            folder.mkdir()
            process, url = prometheus_selftest.start_prometheus(folder, cluster.coordinator.addresses["http"].split(":")[1])
            try:
                self.check_queries(cluster, job, url, process, folder / "log")
            finally:
                process.terminate()
                process.wait(timeout=20)
            cluster.telar("cancel", job)
            cluster.wait_state(job, "CANCELLED")
            self.check_nothing_stays(cluster, job)

    def check_pages(self, cluster):
        content_type, text = fetch(cluster.coordinator.addresses["http"], "/sd/workers")
        self.assertEqual(content_type, "application/json")
        groups = json.loads(text)
        self.assertEqual(sorted(target for group in groups for target in group["targets"]),
                         sorted(worker.addresses["http"] for worker in cluster.workers.values()))
        self.assertTrue(all(isinstance(value, str) for group in groups for value in group["labels"].values()))
        for daemon in [cluster.coordinator, *cluster.workers.values()]:
            content_type, page = fetch(daemon.addresses["http"], "/metrics")
            self.assertTrue(content_type.startswith("text/plain; version=0.0.4"), content_type)
            checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
            self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), daemon.name)
            self.assertIn("telar_build_info", page)
            self.assertEqual(fetch(daemon.addresses["http"], "/healthz")[0].split(";")[0], "text/plain")

    def check_queries(self, cluster, job, url, process, log):
        prometheus_selftest.wait_for_samples(url, process, log)
        prometheus = check_dashboards.Prometheus(url)
        cluster.wait_state(cluster.submit(spec(cluster.text, steps=5, devices=1)), "SUCCEEDED")
        wait_until(lambda: len(prometheus.get("query", query="count_over_time(up[1m]) > 7")["result"]) == 3,
                   "8 scrapes of each")
        self.assertEqual({series["value"][1] for series in prometheus.get("query", query="up")["result"]}, {"1"})
        steps = prometheus.get("query", query=f'telar_steps_total{{job_id="{job}"}}')["result"]
        self.assertEqual(sorted(series["metric"]["rank"] for series in steps), ["0", "1"])
        self.assertTrue(all(0 < float(series["value"][1]) <= cluster.last_step(job) + 1 for series in steps), steps)
        self.check_every_metric_is_used(cluster)
        allowed = [f"--allow-empty={panel}={reason}" for panel, reason in ALLOWED_EMPTY.items()]
        checked = subprocess.run([sys.executable, check_dashboards.__file__, "--prometheus", url, "--window", "60",
                                  "--rate-interval", "5s", *allowed], capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        print(checked.stdout, end="")

    def check_every_metric_is_used(self, cluster):
        shown = "".join(path.read_text() for path in (prometheus_selftest.ROOT / "deploy/grafana/dashboards").glob("*.json"))
        for daemon in [cluster.coordinator, *cluster.workers.values()]:
            for metric, kind in re.findall(r"^# TYPE (\S+) (\S+)$", fetch(daemon.addresses["http"], "/metrics")[1], re.M):
                self.assertTrue(re.search(rf"\b{metric}(_bucket|_sum)?\b", shown) or metric in DELIBERATE, f"{metric} ({kind}) is on no dashboard")

    def check_nothing_stays(self, cluster, job):
        """No series of a job outlives it."""
        for daemon in [cluster.coordinator, *cluster.workers.values()]:
            wait_until(lambda: job not in fetch(daemon.addresses["http"], "/metrics")[1], f"{daemon.name} forgets {job}", 20)


if __name__ == "__main__":
    unittest.main()
