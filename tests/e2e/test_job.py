"""A job from its submission to its end, and the commands around it."""
import json
import unittest

import small_yaml
from cluster import Cluster, spec, wait_until


def same_content(self, one, other, where=""):
    """JSON against YAML: 64-bit integers are strings in one and numbers in the other, enums differ in case."""
    if isinstance(one, dict):
        self.assertEqual(one.keys(), other.keys(), where)
        for key in one:
            same_content(self, one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        self.assertEqual(len(one), len(other), where)
        for index, pair in enumerate(zip(one, other)):
            same_content(self, *pair, f"{where}[{index}]")
    elif isinstance(one, float) or isinstance(other, float):
        self.assertEqual(float(one), float(other), where)
    else:
        self.assertEqual(str(one).lower(), str(other).lower(), where)


class JobTest(unittest.TestCase):
    def test_trains_to_the_end(self):
        with Cluster() as cluster:
            content = spec(cluster.text, steps=60, checkpoint=dict(every_steps=20, keep=2),
                           sample=dict(prompt="The ship", tokens=40), eval=dict(every_steps=30))
            job = cluster.submit(content)
            self.assertRegex(job, r"^[a-z0-9]{8}$")
            watch = cluster.telar("watch", job)
            self.assertIn("SUCCEEDED", watch.stdout)
            done = cluster.job(job)
            self.assertEqual(done["state"], "SUCCEEDED")
            self.check_progress(cluster, job, done)
            self.check_files(cluster, job)
            self.check_formats(cluster, job)
            self.check_logs(cluster, job)
            history = watch.stderr.splitlines()
            for wanted in ("STARTING -> RUNNING", "RUNNING -> SUCCEEDED", "eval at step 30", "checkpoint at step 40"):
                self.assertEqual(sum(wanted in line for line in history), 1, f"{wanted!r} is not there once: {watch.stderr}")

    def check_progress(self, cluster, job, done):
        progress = done["progress"]
        self.assertEqual((progress["step"], progress["total_steps"], progress["checkpoint_step"]), ("60", "60", "60"))
        self.assertEqual(done.get("restarts", 0), 0)
        self.assertEqual([place["state"] for place in done["placement"]], ["EXITED", "EXITED"])
        self.assertEqual({place["node"] for place in done["placement"]}, {"a", "b"})
        curve = cluster.curve(job)
        self.assertEqual(list(curve), list(range(1, 61)))
        self.assertAlmostEqual(float(curve[1]), 5.55, delta=0.3)
        self.assertLess(float(curve[60]), float(curve[1]) - 1.5)
        self.assertEqual(float(curve[60]), progress["loss"])
        self.assertEqual(float(curve[1]), progress["first_loss"])
        self.assertEqual(int(progress["tokens"]), 60 * 8 * 32)

    def check_files(self, cluster, job):
        run = cluster.run_dir(job)
        self.assertEqual(sorted(path.name for path in (run / "ckpt").iterdir()), ["LATEST", "step-00000040", "step-00000060"])
        manifest = json.loads((run / "ckpt/step-00000060/manifest.json").read_text())
        self.assertEqual((manifest["step"], manifest["consumed_samples"]), (60, 480))
        for file in manifest["files"]:
            self.assertEqual((run / "ckpt/step-00000060" / file["name"]).stat().st_size, file["bytes"])
        sample = (run / "sample.txt").read_text(errors="replace")
        self.assertTrue(sample.startswith("The ship"), sample)
        self.assertGreater(len(sample), len("The ship"))
        self.assertEqual(sorted(path.name for path in run.iterdir()), ["ckpt", "metrics.jsonl", "sample.txt"])

    def check_formats(self, cluster, job):
        for command in (["list"], ["describe", job], ["nodes"], ["version"]):
            first, second = cluster.json(*command), small_yaml.parse(cluster.telar(*command, "-o", "yaml").stdout)
            if command[0] == "nodes":
                for node in first["nodes"] + second["nodes"]:
                    del node["heartbeat_time"]
            same_content(self, first, second, " ".join(command))
            self.assertTrue(cluster.telar(*command).stdout.strip())
        rows = [line.split() for line in cluster.telar("list").stdout.splitlines()]
        self.assertEqual(rows[0], ["JOB", "NAME", "STATE", "STEP", "LOSS", "TOKENS/S", "AGE"])
        self.assertEqual(rows[1][:4], [job, "e2e", "SUCCEEDED", "60/60"])
        self.assertEqual(cluster.telar("list", "-o", "name").stdout, f"projects/default/jobs/{job}\n")
        rows = [line.split() for line in cluster.telar("nodes").stdout.splitlines()]
        self.assertEqual([row[:2] for row in rows], [["NODE", "STATE"], ["a", "READY"], ["b", "READY"]])
        page = cluster.telar("describe", job).stdout
        for field in (f"Job:         {job}", "State:       SUCCEEDED", "Step:        60/60", f"Run dir:     {cluster.run_dir(job)}"):
            self.assertIn(field, page)
        self.assertEqual(cluster.job("e2e")["name"], cluster.job(job)["name"])

    def check_logs(self, cluster, job):
        for rank, node in ((0, "a"), (1, "b")):
            printed = cluster.telar("logs", job, "--rank", rank).stdout.encode()
            self.assertEqual(printed, (cluster.folder / f"data/logs/{job}/{rank}.1.log").read_bytes())
            places = list(cluster.folder.glob(f"worker-*/finished/{job}.1.{rank}/log"))
            self.assertEqual(len(places), 1)
            self.assertEqual(printed, places[0].read_bytes())
            self.assertIn(b"finished at step 60", printed)
            self.assertEqual(cluster.telar("logs", job, "--rank", rank, "-f", "--offset", 10).stdout.encode(), printed[10:])
        self.assertIn("error:", cluster.telar("logs", job, "--rank", 2, code=2).stderr)

    def test_dry_run_stores_nothing(self):
        with Cluster() as cluster:
            path = cluster.write_spec(spec(cluster.text))
            first = cluster.telar("submit", path, "--dry-run")
            self.assertIn("nothing was submitted", first.stderr)
            self.assertEqual(small_yaml.parse(first.stdout)["parallel"]["data"], 2)
            self.assertEqual(cluster.telar("submit", "-", "--dry-run", text=first.stdout).stdout, first.stdout)
            self.assertEqual(cluster.jobs(), [])
            self.assertFalse(cluster.run_root.exists() and any(cluster.run_root.iterdir()))
            self.assertEqual(cluster.processes("telar-rank"), {})


class EndTest(unittest.TestCase):
    def test_submit_watch_and_wait_end_with_the_job(self):
        with Cluster() as cluster:
            path = cluster.write_spec(spec(cluster.text, steps=10))
            self.assertIn("SUCCEEDED", cluster.telar("submit", path, "--watch").stdout)
            waited = cluster.telar("submit", path, "--wait", "-o", "json")
            self.assertEqual(json.loads(waited.stdout)["state"], "SUCCEEDED")
            bad = spec(cluster.folder / "nowhere.txt", steps=10)
            self.assertIn("nowhere.txt", cluster.telar("submit", cluster.write_spec(bad), "--wait", code=1).stderr)
            cluster.telar("watch", "absent12", code=4)
            job = cluster.submit(spec(cluster.text, steps=100_000))
            cluster.telar("watch", job, "--wait-timeout", "500ms", code=6)
            cluster.telar("cancel", job)
            cluster.wait_state(job, "CANCELLED")

    def test_cancel_while_running(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000))
            cluster.wait_step(job, 5)
            pids = cluster.rank_pids(job)
            self.assertEqual(sorted(pids), [0, 1])
            cluster.telar("cancel", job)
            cluster.telar("watch", job, code=3)
            done = cluster.job(job)
            self.assertEqual(done["state"], "CANCELLED")
            self.assertEqual(cluster.rank_pids(job), {})
            cluster.telar("cancel", job)
            self.assertTrue(all(not device.get("job") for node in cluster.json("nodes")["nodes"] for device in node["devices"]))
            after = cluster.submit(spec(cluster.text, steps=5))
            cluster.wait_state(after, "SUCCEEDED")
            cluster.telar("cancel", after, code=7)

    def test_cancel_while_queued(self):
        with Cluster() as cluster:
            first = cluster.submit(spec(cluster.text, steps=100_000))
            cluster.wait_state(first, "RUNNING")
            second = cluster.submit(spec(cluster.text, steps=100_000))
            self.assertEqual(cluster.job(second)["state"], "QUEUED")
            self.assertTrue(cluster.job(second)["message"])
            cluster.telar("cancel", second)
            cluster.telar("watch", second, code=3)
            cancelled = cluster.job(second)
            self.assertEqual((cancelled["state"], cancelled.get("epoch", "0")), ("CANCELLED", "0"))
            self.assertEqual(cluster.job(first)["state"], "RUNNING")
            third = cluster.submit(spec(cluster.text, steps=5))
            cluster.telar("cancel", first)
            cluster.wait_state(third, "SUCCEEDED")
            wait_until(lambda: not cluster.rank_pids(first), "no rank of the cancelled job")


if __name__ == "__main__":
    unittest.main()
