"""Checkpoints as users meet them: damaged ones, pins, a stop in the middle of an evaluation, and `telar ckpt`."""
import json
import os
import signal
import time
import unittest

from cluster import Cluster, spec, wait_until, write_text


def steps(cluster, job):
    return sorted(int(path.name[5:]) for path in (cluster.run_dir(job) / "ckpt").glob("step-*"))


def checkpoint(cluster, job, step):
    return cluster.run_dir(job) / f"ckpt/step-{step:08}"


def flip(path):
    """One bit of the last tensor's bytes."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


class CheckpointTest(unittest.TestCase):
    def test_a_damaged_one_is_passed_over_loudly(self):
        with Cluster() as cluster:
            wanted = spec(cluster.text, steps=400, checkpoint=dict(every_steps=40, keep=3))
            unbroken = cluster.submit(wanted)
            cluster.wait_state(unbroken, "SUCCEEDED")
            job = cluster.submit(wanted)
            cluster.wait_step(job, 130)
            pids = cluster.rank_pids(job)
            for pid in pids.values():  # So that no newer one is saved meanwhile.
                os.kill(pid, signal.SIGSTOP)
            damaged = checkpoint(cluster, job, max(steps(cluster, job)))
            flip(sorted(damaged.glob("shard-*"))[-1])
            good = checkpoint(cluster, job, sorted(steps(cluster, job))[-2])
            listed = {line["step"]: line for line in cluster.json("ckpt", "ls", job)["checkpoints"]}
            self.assertEqual({step for step, line in listed.items() if line["state"] == "good"}, set(steps(cluster, job)))
            found = cluster.telar("ckpt", "verify", job, code=9).stdout
            self.assertRegex(found, f"{good}: good\n{damaged}: damaged: checkpoint file {damaged}/shard-")
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual(done["restarts"], 1)
            self.assertEqual(done["progress"]["resumed_from"], str(good))
            self.assertEqual(len(done["progress"]["passed_over"]), 1)
            page = cluster.telar("describe", job).stdout
            self.assertRegex(page, f"Resumed: +{good}\n")
            self.assertRegex(page, f"Passed over: +{damaged}: checkpoint file {damaged}/shard-.*CRC32C")
            history = cluster.telar("watch", job).stderr
            self.assertRegex(history, f"resumed from {good}; passed over {damaged}: ")
            self.assertRegex(cluster.telar("logs", job, "--epoch", 2).stdout, f"checkpoint {damaged} is not usable")
            self.assertEqual(cluster.curve(job), cluster.curve(unbroken))
            self.assertIn("are equal bit for bit", cluster.telar("ckpt", "diff", job, unbroken).stdout)

    def test_pins_and_removal_while_the_job_runs(self):
        with Cluster(workers={"a": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, devices=1, steps=1500, checkpoint=dict(every_steps=20, keep=2)))
            def pinned():
                try:
                    newest = steps(cluster, job)[-1]
                except IndexError:
                    return None
                return newest if cluster.telar("ckpt", "pin", f"{job}@{newest}", code=None).returncode == 0 else None
            kept = wait_until(pinned, "a checkpoint to pin")
            cluster.wait_step(job, kept + 200)
            self.assertIn(kept, steps(cluster, job))
            self.assertIn("pinned", cluster.telar("ckpt", "rm", f"{job}@{kept}", code=7).stderr)
            cluster.telar("ckpt", "unpin", f"{job}@{kept}")
            wait_until(lambda: kept not in steps(cluster, job), "retention takes what is pinned no more")
            cluster.telar("cancel", job, "--wait")
            for step in steps(cluster, job)[:-1]:
                cluster.telar("ckpt", "rm", f"{job}@{step}")
            self.assertIn("only good one", cluster.telar("ckpt", "rm", f"{job}@latest", code=7).stderr)
            self.assertEqual(len(steps(cluster, job)), 1)

    def test_a_cancel_in_an_evaluation_saves_at_once(self):
        with Cluster() as cluster:
            text = write_text(cluster.folder / "long.txt", 8_000_000)
            job = cluster.submit(spec(text, steps=1000, data=dict(eval_fraction=0.5), checkpoint=dict(stop_grace_seconds=60),
                                      eval=dict(every_steps=10, sequences=1_000_000)))
            cluster.wait_step(job, 10)
            begun = time.monotonic()
            cluster.telar("cancel", job, "--wait")
            took = time.monotonic() - begun
            self.assertLess(took, 10)
            self.assertEqual(steps(cluster, job), [10])
            manifest = json.loads((checkpoint(cluster, job, 10) / "manifest.json").read_text())
            self.assertNotIn("eval_loss", manifest)
            self.assertEqual(cluster.telar("ckpt", "verify", job).returncode, 0)
            self.assertEqual({place["exit_code"] for place in cluster.job(job)["placement"]}, {10})


if __name__ == "__main__":
    unittest.main()
