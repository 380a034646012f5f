"""A run that is torn down at random moments repeats the unbroken one bit for bit."""
import os
import random
import signal
import unittest

from cluster import Cluster, spec, wait_until

STEPS = 600


def shards(cluster, job, step):
    folder = cluster.run_dir(job) / f"ckpt/step-{step:08}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def evals(cluster, job):
    return [line for line in (cluster.run_dir(job) / "metrics.jsonl").read_text().splitlines() if "eval_loss" in line]


class ResumeTest(unittest.TestCase):
    def test_killed_ranks_change_no_bit(self):
        seed = int(os.environ.get("TELAR_E2E_SEED", random.randrange(1 << 32)))
        print(f"TELAR_E2E_SEED={seed}", flush=True)
        draw = random.Random(seed)
        with Cluster() as cluster:
            wanted = spec(cluster.text, steps=STEPS, checkpoint=dict(every_steps=40), eval=dict(every_steps=150))
            unbroken = cluster.submit(wanted)
            cluster.wait_state(unbroken, "SUCCEEDED")
            broken = cluster.submit(wanted)
            for attempt in (1, 2):
                low = cluster.last_step(broken)
                cluster.wait_step(broken, draw.randint(low + 45, 280 * attempt))
                victim = draw.randrange(2)
                os.kill(wait_until(lambda: cluster.rank_pids(broken).get(victim), f"rank {victim}"), signal.SIGKILL)
                wait_until(lambda: cluster.job(broken).get("restarts", 0) == attempt, f"restart {attempt}")
                cluster.wait_state(broken, "RUNNING")
            done = cluster.wait_state(broken, "SUCCEEDED")
            self.assertEqual((done["restarts"], done.get("node_restarts", 0), done["epoch"]), (2, 0, "3"))
            first, second = cluster.curve(unbroken), cluster.curve(broken)
            self.assertEqual(list(first), list(range(1, STEPS + 1)))
            self.assertEqual(first, second)
            self.assertEqual(evals(cluster, unbroken), evals(cluster, broken))
            one, other = shards(cluster, unbroken, STEPS), shards(cluster, broken, STEPS)
            self.assertTrue(one)
            self.assertEqual(one.keys(), other.keys())
            for name in one:
                self.assertTrue(one[name] == other[name], f"{name} differs")
            self.check_history(cluster, broken)

    def check_history(self, cluster, job):
        for epoch in (2, 3):
            log = cluster.telar("logs", job, "--epoch", epoch).stdout
            self.assertIn("resume", log.lower(), f"epoch {epoch} does not say where it went on from")
        history = cluster.telar("watch", job).stderr
        self.assertEqual(history.count("RUNNING -> RESTARTING"), 2, history)
        self.assertIn("SIGKILL", history)


class LayoutTest(unittest.TestCase):
    def test_one_rank_and_two_give_the_same_losses(self):
        with Cluster() as cluster:
            jobs = [cluster.submit(spec(cluster.text, steps=40, devices=devices, **{"batch": {"micro": micro}}))
                    for devices, micro in ((2, 4), (1, 8), (2, 2))]
            for job in jobs:
                cluster.wait_state(job, "SUCCEEDED")
            two, one, accumulated = (cluster.curve(job) for job in jobs)
            for other in (one, accumulated):
                self.assertAlmostEqual(float(two[1]), float(other[1]), delta=1e-6)
                for step in two:
                    self.assertAlmostEqual(float(two[step]), float(other[step]), delta=1e-4, msg=f"step {step}")


    def test_three_dimensions_give_the_losses_of_one_rank_and_read_each_others_checkpoints(self):
        layouts = [dict(tensor=1), dict(tensor=2, pipeline=2), dict(data=2, pipeline=2, zero_stage=3, schedule="zb-h1"),
                   dict(tensor=2, data=2, zero_stage=1)]

        def submit(cluster, layout, **changes):
            devices = layout.get("tensor", 1) * layout.get("pipeline", 1) * layout.get("data", 1)
            batch = {"batch": {"micro": 2}}
            return cluster.submit(spec(cluster.text, devices=devices, parallel=layout, **batch, **changes))

        with Cluster({"a": 4}) as cluster:
            jobs = [submit(cluster, layout, steps=20) for layout in layouts]
            for job in jobs:
                cluster.wait_state(job, "SUCCEEDED")
            alone = cluster.curve(jobs[0])
            for layout, job in zip(layouts, jobs):
                curve = cluster.curve(job)
                self.assertEqual(list(curve), list(alone), layout)
                for step in alone:
                    self.assertAlmostEqual(float(curve[step]), float(alone[step]), delta=1e-4, msg=f"{layout} {step}")
            # From the checkpoint of each, another layout goes on as one rank does.
            for layout, source in zip(layouts[1:], jobs[1:]):
                start = dict(init_from=str(cluster.run_dir(source) / "ckpt/step-00000020"))
                pair = [submit(cluster, one, steps=6, checkpoint=start) for one in (layouts[0], layouts[-1])]
                for job in pair:
                    cluster.wait_state(job, "SUCCEEDED")
                one, other = (cluster.curve(job) for job in pair)
                self.assertLess(float(one[1]), float(alone[1]) - 0.3, f"{layout}: not what was trained")
                for step in one:
                    self.assertAlmostEqual(float(one[step]), float(other[step]), delta=1e-4, msg=f"{layout} {step}")


class GiveUpTest(unittest.TestCase):
    def test_a_rank_that_keeps_dying_fails_the_job(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000, restart=dict(max_restarts=1)))
            for attempt in (1, 2):
                cluster.wait_state(job, "RUNNING")
                os.kill(wait_until(lambda: cluster.rank_pids(job).get(1), "rank 1"), signal.SIGKILL)
                wait_until(lambda: cluster.job(job)["state"] != "RUNNING", "the end is seen")
            cluster.telar("watch", job, code=1)
            done = cluster.job(job)
            self.assertEqual((done["state"], done["failure_class"], done["restarts"]), ("FAILED", "CRASH", 1))
            self.assertIn("rank 1", done["message"])
            self.assertIn("SIGKILL", done["message"])
            self.assertEqual(cluster.rank_pids(job), {})


if __name__ == "__main__":
    unittest.main()
