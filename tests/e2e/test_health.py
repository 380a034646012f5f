"""Ends that leave nothing behind, devices that fail, and logs that lose nothing unsaid. The ranks are fakes that misbehave."""
import os
import re
import select
import shutil
import signal
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from cluster import BIN, Cluster, alive, spec, wait_until

FAKE = BIN / "fake_rank"
GRACE = 1


def write(path, text):
    """By rename: whoever reads it sees the old or the new one."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)
    return path


def script(cluster, words, name="run", **changes):
    """A job whose ranks do what `words` say."""
    path = write(cluster.folder / f"{name}.script", words)
    changes.setdefault("checkpoint", dict(stop_grace_seconds=GRACE))
    return spec(path, **changes)


def fetch(address, page):
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def quarantine(cluster):
    """(node, index) -> reason"""
    found = {}
    for node in cluster.json("nodes")["nodes"]:
        for device in node["devices"]:
            if device.get("quarantine"):
                found[(node["name"], device["device"].get("index", 0))] = device["quarantine"]
    return found


def conditions(job, kind):
    return [one["message"] for one in job.get("conditions", []) if one["type"] == kind]


class EndTest(unittest.TestCase):
    def test_cancel_finds_what_hides(self):
        with Cluster(workers={}) as cluster:
            for index in range(2):
                (cluster.folder / f"dev{index}").write_text("a device")
            cluster.start_worker("a", 2, ("--stop-ranks-on-exit", "--rank-program", FAKE,
                                          "--device-files", cluster.folder / "dev"))
            cluster.wait_nodes(1)
            stubborn = cluster.submit(script(
                cluster, f"ignore_term hold:{cluster.folder}/dev0 fork escape print:deaf hang", "stubborn", devices=1))
            wait_until(lambda: "deaf" in cluster.telar("logs", stubborn).stdout, "it has forked")
            other = cluster.submit(script(cluster, "run", "other", devices=1))
            cluster.wait_state(other, "RUNNING")
            bystander = cluster.rank_pids(other)
            folder = cluster.state("a") / "ranks" / stubborn / "1" / "0"
            family = [int((folder / name).read_text()) for name in ("grandchild", "escaped")]
            self.assertTrue(all(map(alive, family)))
            start = time.monotonic()
            cluster.telar("cancel", stubborn, "--wait")
            self.assertLess(time.monotonic() - start, GRACE + 5)
            self.assertEqual(cluster.job(stubborn)["state"], "CANCELLED")
            self.assertFalse(any(map(alive, family)))
            self.assertEqual(cluster.rank_pids(stubborn), {})
            self.assertEqual(cluster.rank_pids(other), bystander)
            self.assertEqual(cluster.job(other)["state"], "RUNNING")
            self.assertEqual(conditions(cluster.job(stubborn), "RESIDUE"), [])

    def test_residue_keeps_its_device_only_and_only_while_it_is_there(self):
        with Cluster(workers={}) as cluster:
            block = write(cluster.folder / "no_kill", "")
            for name in "abc":
                os.environ.pop("TELAR_FAIL_KILL", None)
                if name == "b":
                    os.environ["TELAR_FAIL_KILL"] = str(block)
                try:
                    cluster.start_worker(name, 1, ("--stop-ranks-on-exit", "--rank-program", FAKE, "--residue-after", "1"))
                finally:
                    os.environ.pop("TELAR_FAIL_KILL", None)
            cluster.wait_nodes(3)
            job = cluster.submit(script(cluster, "ignore_term print:on hang", devices=3, batch={"global": 6}))
            cluster.wait_state(job, "RUNNING")
            for rank in range(3):
                wait_until(lambda: cluster.telar("logs", job, "--rank", rank).stdout == "on\n", "it is deaf")
            left = {place["node"]: place["pid"] for place in cluster.job(job)["placement"]}["b"]
            cluster.telar("cancel", job, "--wait")
            done = cluster.job(job)
            self.assertEqual(done["state"], "CANCELLED")
            self.assertEqual(conditions(done, "RESIDUE"), [f"node b: cpu:0: pid {left} does not die of SIGKILL"])
            self.assertIn(f"pid {left}", cluster.telar("describe", job).stdout)
            self.assertEqual(list(quarantine(cluster)), [("b", 0)])
            self.assertRegex(cluster.telar("nodes").stdout, rf"b cpu:0 is in quarantine since .*pid {left}")
            self.assertTrue(alive(left))
            # By hand it is not given back while it is there.
            self.assertIn(f"pid {left}", cluster.telar("nodes", "release", "b", "cpu:0", code=7).stderr)
            narrow = cluster.submit(script(cluster, "step:2 finish exit:0", "narrow", devices=2))
            wide = cluster.submit(script(cluster, "step:2 finish exit:0", "wide", devices=3, batch={"global": 6}))
            cluster.wait_state(narrow, "SUCCEEDED")
            self.assertEqual(cluster.job(wide)["state"], "QUEUED")
            block.unlink()
            cluster.wait_state(wide, "SUCCEEDED", timeout=20)
            self.assertFalse(alive(left))
            self.assertEqual(quarantine(cluster), {})

    def test_daemon_that_comes_back_after_its_lease_kills_before_it_offers(self):
        with Cluster(workers={}) as cluster:
            for name in "ab":
                cluster.start_worker(name, 1, ("--stop-ranks-on-exit", "--rank-program", FAKE))
            cluster.wait_nodes(2)
            job = cluster.submit(script(cluster, "ignore_term started run", devices=1))
            cluster.wait_state(job, "RUNNING")
            node = cluster.job(job)["placement"][0]["node"]
            old = cluster.rank_pids(job)[0]
            frozen = cluster.workers[node].process
            frozen.send_signal(signal.SIGSTOP)
            wait_until(lambda: cluster.job(job)["epoch"] == "2", "a second epoch", 20)
            cluster.wait_state(job, "RUNNING")
            self.assertTrue(alive(old))  # Nobody can reach it; its device is not given out.
            waits = cluster.submit(script(cluster, "step:1 finish exit:0", "next", devices=1))
            time.sleep(1)
            self.assertEqual(cluster.job(waits)["state"], "QUEUED")
            frozen.send_signal(signal.SIGCONT)
            done = cluster.wait_state(waits, "SUCCEEDED", timeout=20)
            self.assertEqual(done["placement"][0]["node"], node)
            self.assertFalse(alive(old))
            self.assertEqual(cluster.job(job)["epoch"], "2")


class DeviceTest(unittest.TestCase):
    def test_faults_and_a_driver_that_does_not_answer(self):
        with Cluster(workers={}) as cluster:
            played = {}

            def play(name, text):
                played[name] = write(cluster.folder / f"nvml-{name}", text)

            for name in "ab":
                play(name, "devices 1\nlink 0 0 1\n")
                os.environ["TELAR_FAKE_NVML"] = str(played[name])
                try:
                    cluster.start_worker(name, 1, ("--stop-ranks-on-exit", "--rank-program", FAKE, "--probe", "on",
                                                   "--nvml", BIN / "libfake_nvml.so", "--probe-deadline", "2"))
                finally:
                    del os.environ["TELAR_FAKE_NVML"]
            cluster.wait_nodes(2)
            job = cluster.submit(script(cluster, "started run", devices=1, restart=dict(max_restarts=0)))
            cluster.wait_state(job, "RUNNING")
            node = cluster.job(job)["placement"][0]["node"]
            other = "b" if node == "a" else "a"
            http = {name: cluster.workers[name].addresses["http"] for name in "ab"}

            # The application's own: counted, noted, and nothing else.
            play(node, "devices 1\nlink 0 0 1\nxid 0 31\nxid 0 31\n")
            wait_until(lambda: conditions(cluster.job(job), "DEVICE_FAULT"), "it is noted", 10)
            self.assertIn('telar_device_faults_total{code="xid-31",device="cpu:0"} 2\n', fetch(http[node], "/metrics")[1])
            self.assertEqual((cluster.job(job)["epoch"], quarantine(cluster)), ("1", {}))

            start = time.monotonic()
            play(node, "devices 1\nlink 0 0 1\nxid 0 31\nxid 0 31\nxid 0 79\n")
            wait_until(lambda: cluster.job(job)["epoch"] == "2" and cluster.job(job)["state"] == "RUNNING", "it moves", 10)
            self.assertLess(time.monotonic() - start, 10)
            moved = cluster.job(job)
            self.assertEqual(moved["placement"][0]["node"], other)
            self.assertEqual((moved.get("restarts", 0), moved["node_restarts"]), (0, 1))
            self.assertEqual(quarantine(cluster), {(node, 0): "xid-79 (GPU has fallen off the bus)"})

            # It outlives the coordinator, and ends by hand.
            address = cluster.address
            cluster.coordinator.kill()
            cluster.start_coordinator(address)
            cluster.wait_nodes(2)
            self.assertEqual(quarantine(cluster), {(node, 0): "xid-79 (GPU has fallen off the bus)"})
            self.assertNotIn("quarantine", cluster.telar("nodes", "release", node, "cpu:0").stdout)
            self.assertEqual(quarantine(cluster), {})
            cluster.telar("nodes", "release", "nowhere", "cpu:0", code=4)

            play(node, "devices 1\nlink 0 0 0\necc 0 1\nxid 0 31\nxid 0 31\nxid 0 79\n")
            wait_until(lambda: (node, 0) in quarantine(cluster), "a link or memory is told of", 10)
            page = fetch(http[node], "/metrics")[1]
            for code in ("ecc-uncorrected", "nvlink-0-down", "xid-79"):
                self.assertIn(f'telar_device_faults_total{{code="{code}",device="cpu:0"}} 1\n', page)

            # The driver falls silent where the job runs: nobody can tell, and nothing stops.
            self.assertEqual(fetch(http[other], "/readyz")[0], 200)
            play(other, "devices 1\nlink 0 0 1\nblock\n")
            wait_until(lambda: fetch(http[other], "/readyz")[0] == 503, "not ready", 10)
            self.assertIn("telar_telemetry_stale 1\n", fetch(http[other], "/metrics")[1])
            self.assertIn("stale", quarantine(cluster)[(other, 0)])
            step = cluster.job(job)["progress"]["step"]
            wait_until(lambda: int(cluster.job(job)["progress"]["step"]) > int(step) + 100, "the job goes on", 10)
            self.assertEqual({one["name"]: one["state"] for one in cluster.json("nodes")["nodes"]}, {"a": "READY", "b": "READY"})
            play(other, "devices 1\nlink 0 0 1\n")
            wait_until(lambda: fetch(http[other], "/readyz")[0] == 200, "ready again", 20)
            self.assertEqual(cluster.job(job)["epoch"], "2")


class LogTest(unittest.TestCase):
    def test_every_line_before_an_abort_and_over_restarts(self):
        lines = 200_000
        whole = "".join(f"line {number}\n" for number in range(1, lines + 1))
        with Cluster(workers={}) as cluster:
            cluster.start_worker("a", 1, ("--stop-ranks-on-exit", "--rank-program", FAKE))
            cluster.wait_nodes(1)
            job = cluster.submit(script(cluster, f"lines:{lines} abort", devices=1, restart=dict(max_restarts=0)))
            with cluster.spawn("logs", job, "-f") as logs:
                wait_until(lambda: select.select([logs.stdout], [], [], 0)[0], "the first line")
                address = cluster.address
                cluster.coordinator.kill()
                cluster.workers["a"].kill()
                cluster.start_coordinator(address)
                cluster.start_worker("a", 1, ("--stop-ranks-on-exit", "--rank-program", FAKE))
                followed = logs.communicate(timeout=60)[0]
            self.assertEqual(logs.returncode, 1)  # As the job: it failed.
            self.assertTrue(followed == whole, f"{len(followed)} bytes of {len(whole)}")
            self.assertTrue(cluster.telar("logs", job).stdout == whole)
            self.assertEqual(cluster.job(job)["state"], "FAILED")
            # A stream that is lost for good has a code of its own.
            running = cluster.submit(script(cluster, "run", "more", devices=1))
            cluster.wait_state(running, "RUNNING")
            with cluster.spawn("logs", running, "-f", "--timeout", "2s") as logs:
                wait_until(lambda: select.select([logs.stdout], [], [], 0)[0], "a line of the stream")
                cluster.coordinator.kill()
                logs.communicate(timeout=30)
            self.assertEqual(logs.returncode, 8)
            cluster.start_coordinator(address)

    def test_whoever_keeps_the_log_open_does_not_hold_the_end(self):
        with Cluster(workers={}) as cluster:
            cluster.start_worker("a", 1, ("--stop-ranks-on-exit", "--rank-program", FAKE))
            cluster.wait_nodes(1)
            job = cluster.submit(script(cluster, "print:first fork print:last finish exit:0", devices=1))
            cluster.wait_state(job, "SUCCEEDED", timeout=20)
            self.assertEqual(cluster.telar("logs", job).stdout, "first\nlast\n")

    def test_coordinators_limit_of_one_log(self):
        with Cluster(workers={}, coordinator_options=("--log-rank-limit", "256K")) as cluster:
            cluster.start_worker("a", 1, ("--stop-ranks-on-exit", "--rank-program", FAKE))
            cluster.wait_nodes(1)
            job = cluster.submit(script(cluster, "lines:200000 finish exit:0", devices=1))
            done = cluster.wait_state(job, "SUCCEEDED", timeout=30)
            printed = cluster.telar("logs", job).stdout
            self.check_gap(printed, sum(len(f"line {number}\n") for number in range(1, 200_001)))
            self.assertTrue(printed.endswith("line 199999\nline 200000\n"))
            self.assertRegex(conditions(done, "LOG_GAP")[0], r"rank 0 epoch 1: missing from its log: \d+ bytes")
            self.assertRegex(fetch(cluster.coordinator.addresses["http"], "/metrics")[1],
                             r"telar_log_missing_bytes_total [1-9]")

    def check_gap(self, printed, size):
        notes = re.findall(r"\[telar: (\d+) bytes of this log are missing here\]\n", printed)
        self.assertEqual(len(notes), 1, printed[:200])
        rest = len(printed) - len(f"[telar: {notes[0]} bytes of this log are missing here]\n")
        self.assertIn(rest + int(notes[0]) - size, (0, 1))  # The note begins a line of its own.


@unittest.skipUnless(os.geteuid() == 0, "a small file system has to be mounted")
class FullDiskTest(unittest.TestCase):
    def mount(self, cluster, folder, size):
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"no tmpfs: {done.stderr.decode().strip()}")
        self.addCleanup(shutil.rmtree, cluster.folder, ignore_errors=True)  # What the mount keeps from being removed.
        self.addCleanup(subprocess.run, ["umount", "-l", str(folder)], check=False, capture_output=True)

    def test_of_the_coordinators_logs(self):
        with Cluster(workers={}) as cluster:
            address = cluster.address
            cluster.coordinator.kill()
            self.mount(cluster, cluster.folder / "data/logs", "1m")
            cluster.start_coordinator(address)
            cluster.start_worker("a", 1, ("--stop-ranks-on-exit", "--rank-program", FAKE, "--log-patience", "1"))
            cluster.wait_nodes(1)
            size = 4_000_000
            job = cluster.submit(script(cluster, f"bytes:{size} step:3 finish exit:0", devices=1))
            done = cluster.wait_state(job, "SUCCEEDED", timeout=30)
            note = conditions(done, "LOG_GAP")[0]
            missing = int(re.search(r"(\d+) bytes", note)[1])
            self.assertGreater(missing, 2_000_000)
            self.assertIn(f"[telar: {missing} bytes of this log are missing here]", cluster.telar("logs", job).stdout)
            self.assertIn(f"telar_worker_log_lost_bytes_total {missing}",
                          fetch(cluster.workers["a"].addresses["http"], "/metrics")[1])

    def test_of_the_workers_state(self):
        with Cluster(workers={}) as cluster:
            self.mount(cluster, cluster.state("a"), "4m")
            cluster.start_worker("a", 1)
            cluster.wait_nodes(1)
            steps = 600
            job = cluster.submit(spec(cluster.text, steps=steps, devices=1, eval=dict(every_steps=1, sequences=1)))
            cluster.wait_step(job, 50)
            filler = cluster.state("a") / "filler"
            with filler.open("wb", buffering=0) as file:  # Else closing it writes once more.
                while True:
                    try:
                        file.write(bytes(4096))
                    except OSError:
                        break
            full = cluster.last_step(job)
            cluster.wait_step(job, full + 200)
            filler.unlink()
            done = cluster.wait_state(job, "SUCCEEDED", timeout=60)
            self.assertEqual(done["progress"]["step"], str(steps))
            self.assertEqual(done.get("restarts", 0), 0)
            self.assertEqual(list(cluster.curve(job)), list(range(1, steps + 1)))
            self.assertRegex(cluster.telar("logs", job).stdout, r"\[telar: \d+ bytes of this log are missing here: the disk was full\]")
            self.assertRegex(conditions(done, "LOG_GAP")[0], r"rank 0 epoch 1: no room on its node's disk: \d+ bytes")


if __name__ == "__main__":
    unittest.main()
