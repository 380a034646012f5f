#!/usr/bin/env python3
"""What is promised of devices (docs/devices.md), seen on this host's first GPU with the real driver and the real daemons.

    bench/gpu/health.py --bin build/release/bin [--out DIR]

The probe's figures while a job runs and behind it; a cancelled job, a killed rank and what they leave; a probe that is killed
and one that hangs. Exit 0: all as promised; 1: not, and what.
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import layouts

CLOSE = 512 << 20  # Bytes; what a receipt allows of memory that is still in use.


def fetch(address, page):
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def value(page, name):
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M)
    return max(map(float, found)) if found else None


class Health:
    def __init__(self, service):
        self.service, self.failures = service, []
        self.http = service.ports["worker"]["http"]

    def metric(self, name):
        return value(fetch(self.http, "/metrics")[1], name)

    def check(self, what, holds):
        print(f"{'ok' if holds else 'NOT SO':8}{what}", flush=True)
        if not holds:
            self.failures.append(what)

    def until(self, condition, what, limit=60.0):
        """Seconds until it holds."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > limit:
                self.check(f"{what}, not within {limit:g} s", False)
                return limit
            time.sleep(0.05)
        seconds = time.monotonic() - start
        self.check(f"{what}: {seconds:.2f} s", True)
        return seconds

    def submit(self, name, tokens, steps, **changes):
        line = {"name": name, "preset": "gpt2-124m", "sequence": "1024", "micro": "16", "global": "16", "parallel": "data=1"}
        spec = {**layouts.spec_of(line, tokens, steps), "trace": {}, **changes}
        return self.service.submit(spec)

    def state(self, job):
        return self.service.job(job)["state"]

    def probe(self):
        found = subprocess.run(["pgrep", "-x", "telar-probe"], capture_output=True, text=True, check=False).stdout.split()
        return int(found[-1]) if found else 0

    def clean(self, job):
        conditions = [one for one in self.service.job(job).get("conditions", []) if one["type"] in ("RESIDUE", "DEVICE_FAULT")]
        self.check(f"nothing is left of it, and no device is blamed {conditions or ''}", not conditions)

    def ends(self, tokens, before):
        job = self.submit("runs", tokens, 60)
        self.until(lambda: (self.metric("telar_device_used_bytes") or 0) > before + CLOSE, "the probe sees a job's memory")
        self.until(lambda: self.state(job) == "SUCCEEDED", "the job ends", 120)
        self.clean(job)
        self.until(lambda: self.metric("telar_device_used_bytes") < before + CLOSE, "its memory is back", 20)

        job = self.submit("cancelled", tokens, 100_000)
        self.until(lambda: self.state(job) == "RUNNING", "the next one runs", 60)
        time.sleep(8)  # Graphs are captured and steps in flight.
        start = time.monotonic()
        self.service.telar("cancel", job, "--wait")
        self.check(f"cancelled within {time.monotonic() - start:.2f} s: {self.state(job)}", self.state(job) == "CANCELLED")
        self.clean(job)

        job = self.submit("killed", tokens, 100_000, restart={"max_restarts": 1, "backoff_seconds": 1})
        self.until(lambda: self.state(job) == "RUNNING", "the next one runs", 60)
        time.sleep(8)
        os.kill(self.service.job(job)["placement"][0]["pid"], signal.SIGKILL)
        self.until(lambda: self.service.job(job).get("epoch") not in ("1", 1) and self.state(job) == "RUNNING",
                   "a killed rank's job runs again", 60)
        self.service.telar("cancel", job, "--wait")
        self.clean(job)

    def watchers(self):
        restarts = self.metric("telar_probe_restarts_total")
        os.kill(self.probe(), signal.SIGKILL)
        self.until(lambda: self.metric("telar_probe_restarts_total") > restarts, "a killed probe is started again", 30)
        self.until(lambda: self.metric("telar_telemetry_stale") == 0, "and tells again", 30)
        os.kill(self.probe(), signal.SIGSTOP)
        self.until(lambda: self.metric("telar_telemetry_stale") == 1, "a probe that hangs is noticed", 40)
        self.check("/readyz says so, /healthz does not", (fetch(self.http, "/readyz")[0], fetch(self.http, "/healthz")[0]) == (503, 200))
        self.until(lambda: self.metric("telar_telemetry_stale") == 0, "and replaced", 60)
        self.until(lambda: fetch(self.http, "/readyz")[0] == 200, "/readyz is well again", 30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-health."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    tokens = out / "tokens.bin"
    layouts.write_tokens(tokens, 1 << 20, 50257)
    service = layouts.Service(options.bin.resolve(), out)
    health = Health(service)
    try:
        service.wait_for_devices()
        health.until(lambda: health.metric("telar_device_used_bytes") is not None, "the probe tells of the device", 30)
        before = health.metric("telar_device_used_bytes")
        ages = []
        for _ in range(20):
            ages.append(time.time() - health.metric("telar_telemetry_last_success_timestamp_seconds"))
            time.sleep(0.25)
        health.check(f"what it tells is {statistics.mean(ages):.2f} s old in the mean, {max(ages):.2f} at the most", max(ages) < 3)
        health.ends(tokens, before)
        health.watchers()
    finally:
        service.stop()
    for failure in health.failures:
        print(f"not as promised: {failure}", file=sys.stderr)
    return 1 if health.failures else 0


if __name__ == "__main__":
    sys.exit(main())
