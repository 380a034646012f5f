"""Daemons come and go; jobs stay."""
import contextlib
import os
import re
import signal
import sqlite3
import time
import unittest

from cluster import LEASE_SECONDS, Cluster, answers, spec, wait_until

LONG = 1200


def stored_steps(cluster, job):
    """The steps of a job's events in the coordinator's store, in the order of the events."""
    with contextlib.closing(sqlite3.connect(f"file:{cluster.folder}/data/telar.db?mode=ro", uri=True)) as store:
        rows = store.execute("SELECT step, sequence FROM events WHERE job = ? ORDER BY sequence", (job,)).fetchall()
    sequences = [sequence for _, sequence in rows]
    assert len(set(sequences)) == len(sequences)
    return [step for step, _ in rows if step]


class CoordinatorTest(unittest.TestCase):
    def test_killed_mid_run(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG, checkpoint=dict(every_steps=100)))
            cluster.wait_step(job, 60)
            ranks = cluster.rank_pids(job)
            queued = cluster.submit(spec(cluster.text, steps=5))
            address = cluster.address
            cluster.coordinator.kill()
            self.assertFalse(answers(address))
            away = cluster.last_step(job)
            cluster.wait_step(job, away + 60)
            self.assertIn(address, cluster.telar("list", "--timeout", "1s", code=5).stderr)
            cluster.start_coordinator(address)
            self.assertEqual(cluster.address, address)
            found = {one["name"].rpartition("/")[2]: one["state"] for one in cluster.jobs()}
            self.assertEqual(found.keys(), {job, queued})
            self.assertIn(found[job], ("STARTING", "RUNNING"))
            self.assertEqual(found[queued], "QUEUED")
            self.assertEqual(cluster.wait_state(job, "RUNNING")["epoch"], "1")
            self.assertEqual(cluster.rank_pids(job), ranks)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual((done.get("restarts", 0), done.get("node_restarts", 0), done["epoch"]), (0, 0, "1"))
            self.assertEqual(list(cluster.curve(job)), list(range(1, LONG + 1)))
            self.check_stored(cluster, job)
            cluster.wait_state(queued, "SUCCEEDED")

    def check_stored(self, cluster, job):
        steps = stored_steps(cluster, job)
        stride = steps[1] - steps[0]
        self.assertEqual(steps, list(range(steps[0], LONG + 1, stride)))
        self.assertLessEqual(steps[0], stride)
        for rank in (0, 1):
            printed = cluster.telar("logs", job, "--rank", rank).stdout
            self.assertEqual(printed, next(cluster.folder.glob(f"worker-*/finished/{job}.1.{rank}/log")).read_text())

    def test_killed_right_after_an_answer(self):
        with Cluster() as cluster:
            address, jobs = cluster.address, []
            for _ in range(5):
                jobs.append(cluster.submit(spec(cluster.text, steps=5, resources=dict(wait_for_capacity=True))))
                cluster.coordinator.kill()
                cluster.start_coordinator(address)
            self.assertEqual({one["name"].rpartition("/")[2] for one in cluster.jobs()}, set(jobs))
            for job in jobs:  # A gang that was just meeting finds the keys it met by, and goes on.
                self.assertEqual(cluster.wait_state(job, "SUCCEEDED").get("restarts", 0), 0)

    def test_killed_before_the_cancel_is_done(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000))
            cluster.wait_step(job, 5)
            address = cluster.address
            cluster.telar("cancel", job)
            cluster.coordinator.kill()
            cluster.start_coordinator(address)
            cluster.telar("watch", job, code=3)
            cluster.wait_no_ranks(job)

    def test_watch_and_logs_outlive_it(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG, checkpoint=dict(every_steps=50, keep=1)))
            with cluster.spawn("watch", job) as watch, cluster.spawn("logs", job, "-f") as logs:
                cluster.wait_step(job, 60)
                address = cluster.address
                cluster.coordinator.kill()
                cluster.wait_step(job, cluster.last_step(job) + 100)
                cluster.start_coordinator(address)
                followed = logs.communicate(timeout=90)[0]
                history = watch.communicate(timeout=90)[1].splitlines()
            self.assertEqual((watch.returncode, logs.returncode), (0, 0))
            self.assertEqual(followed, cluster.telar("logs", job).stdout)
            for step in range(50, LONG + 1, 50):
                # Published, or given up loudly for the next one: nobody was there to decide. Either is told once.
                told = [line for line in history if re.search(rf"checkpoint at step {step}(:| FAILED: .* in vain)", line)]
                self.assertEqual(len(told), 1, f"step {step}: {history}")
            self.assertTrue(any(f"checkpoint at step {LONG}:" in line for line in history), history)


class WorkerTest(unittest.TestCase):
    def test_killed_and_back_within_the_lease(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG))
            cluster.wait_step(job, 60)
            ranks = cluster.rank_pids(job)
            cluster.workers["b"].kill()
            self.assertEqual(cluster.rank_pids(job), ranks)
            cluster.wait_step(job, cluster.last_step(job) + 30)
            cluster.start_worker("b")
            self.assertEqual(cluster.rank_pids(job), ranks)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual((done.get("restarts", 0), done.get("node_restarts", 0), done["epoch"]), (0, 0, "1"))
            self.assertEqual({place.get("rank", 0): place["pid"] for place in done["placement"]}, ranks)
            self.assertEqual(list(cluster.curve(job)), list(range(1, LONG + 1)))

    def test_rank_that_ends_while_its_daemon_is_away(self):
        with Cluster(workers={"a": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, steps=100, devices=1))
            cluster.wait_step(job, 3)
            cluster.workers["a"].kill()
            cluster.wait_no_ranks(job)
            cluster.start_worker("a")
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual((done.get("restarts", 0), done["epoch"], done["progress"]["step"]), (0, "1", "100"))
            self.assertIn("finished at step 100", cluster.telar("logs", job).stdout)

    def test_lost_node(self):
        with Cluster(workers={"a": 1, "b": 1, "c": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG, checkpoint=dict(every_steps=50)))
            cluster.wait_step(job, 120)
            before = cluster.job(job)
            victim = before["placement"][1]["node"]
            free = ({"a", "b", "c"} - {place["node"] for place in before["placement"]}).pop()
            cluster.kill_node(victim)
            wait_until(lambda: cluster.job(job).get("node_restarts", 0) == 1, "the loss is paid for", 10 * LEASE_SECONDS)
            placed = cluster.wait_state(job, "RUNNING")
            self.assertEqual({place["node"] for place in placed["placement"]}, {"a", "b", "c"} - {victim})
            self.assertIn(free, {place["node"] for place in placed["placement"]})
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual((done.get("restarts", 0), done["node_restarts"], done["epoch"]), (0, 1, "2"))
            self.assertIn("resumed from", cluster.telar("logs", job, "--epoch", 2).stdout)
            self.assertEqual(list(cluster.curve(job)), list(range(1, LONG + 1)))
            states = {node["name"]: node["state"] for node in cluster.json("nodes")["nodes"]}
            self.assertEqual(states, {name: "LOST" if name == victim else "READY" for name in "abc"})
            cluster.start_worker(victim)
            cluster.wait_nodes(3)
            cluster.wait_state(cluster.submit(spec(cluster.text, steps=5, devices=3, **{"batch": {"global": 6}})), "SUCCEEDED")

    def test_sigterm_leaves_ranks_alone(self):
        with Cluster(workers={"a": 1}) as cluster:
            self.assertEqual(cluster.workers["a"].terminate(), 0)
            cluster.start_worker("a", options=())
            job = cluster.submit(spec(cluster.text, steps=LONG, devices=1))
            cluster.wait_step(job, 30)
            ranks = cluster.rank_pids(job)
            self.assertEqual(cluster.workers["a"].terminate(), 0)
            self.assertEqual(cluster.rank_pids(job), ranks)
            cluster.start_worker("a")
            self.assertEqual(cluster.wait_state(job, "SUCCEEDED").get("restarts", 0), 0)

    def test_sigterm_with_stop_ranks_on_exit(self):
        with Cluster(workers={"a": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG, devices=1))
            cluster.wait_step(job, 60)
            self.assertEqual(cluster.workers["a"].terminate(), 0)
            self.assertEqual(cluster.rank_pids(job), {})
            stopped = cluster.last_step(job)
            self.assertLess(stopped, LONG)
            self.assertEqual([path.name for path in (cluster.run_dir(job) / "ckpt").glob("step-*")], [f"step-{stopped:08}"])
            # It has said goodbye: nobody waits for its lease.
            self.assertEqual(cluster.json("nodes")["nodes"][0]["state"], "OFFLINE")
            self.assertEqual(cluster.job(job)["state"], "QUEUED")
            cluster.start_worker("a")
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual(done.get("restarts", 0), 0)
            self.assertIn(f"at step {stopped}", cluster.telar("logs", job, "--epoch", 2).stdout)
            self.assertEqual(list(cluster.curve(job)), list(range(1, LONG + 1)))

    def test_stopped_process_is_a_lost_node_and_cannot_come_back_into_the_run(self):
        with Cluster(workers={"a": 1, "b": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, steps=LONG, devices=1, checkpoint=dict(every_steps=50)))
            cluster.wait_step(job, 60)
            node = cluster.job(job)["placement"][0]["node"]
            old = cluster.rank_pids(job)[0]
            frozen = [pid for pid, command in cluster.processes().items() if str(cluster.state(node)) in command]
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: cluster.job(job)["epoch"] == "2", "a second epoch", 10 * LEASE_SECONDS)
            cluster.wait_state(job, "RUNNING")
            for pid in frozen:
                with contextlib.suppress(ProcessLookupError):  # The daemon, awake again, is quick to kill its old rank.
                    os.kill(pid, signal.SIGCONT)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual(done["epoch"], "2")
            wait_until(lambda: old not in cluster.processes(), "the old rank is gone")
            time.sleep(0.2)
            self.assertEqual(list(cluster.curve(job)), list(range(1, LONG + 1)))


if __name__ == "__main__":
    unittest.main()
