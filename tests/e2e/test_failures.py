"""What stops or slows a gang from outside is found, named and gone round; replicas come and go with the nodes."""
import os
import signal
import threading
import time
import unittest

from cluster import Cluster, spec, wait_until

HANG_SECONDS = 3


def condition(job, name):
    return next((one["message"] for one in job.get("conditions", []) if one["type"] == name), "")


class HangTest(unittest.TestCase):
    def test_a_stopped_rank_is_named_and_the_gang_goes_on(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000, checkpoint=dict(every_steps=50, stop_grace_seconds=1),
                                      restart=dict(hang_seconds=HANG_SECONDS)))
            cluster.wait_step(job, 120)
            node = next(one["node"] for one in cluster.job(job)["placement"] if one.get("rank", 0) == 1)
            os.kill(cluster.rank_pids(job)[1], signal.SIGSTOP)
            stopped = time.monotonic()
            wait_until(lambda: condition(cluster.job(job), "HANG"), "the hang is found", timeout=30, pause=0.1)
            # The limit, a look of the worker, a heartbeat, the records; idle machines need half of the rest.
            self.assertLess(time.monotonic() - stopped, HANG_SECONDS + 8)
            found = condition(cluster.job(job), "HANG")
            self.assertTrue(found.startswith(f"rank 1 on node {node} "), found)
            self.assertIn("its process is stopped", found)
            self.assertRegex(found, r"in (all_reduce|all_gather|reduce_scatter|broadcast) [0-9]+ of group [a-z]+\.0")
            cluster.wait_state(job, "RUNNING")
            after = wait_until(lambda: cluster.rank_pids(job).get(1), "rank 1 runs again")
            self.assertTrue(after)
            cluster.wait_step(job, cluster.last_step(job) + 20)
            now = cluster.job(job)
            self.assertEqual((now["epoch"], now.get("restarts", 0), now["node_restarts"]), ("2", 0, 1))
            self.assertRegex(cluster.telar("describe", job).stdout, rf"Condition:   HANG, .*: rank 1 on node {node} ")
            cluster.telar("cancel", job)
            cluster.wait_state(job, "CANCELLED")


class StragglerTest(unittest.TestCase):
    def test_a_rank_that_is_held_up_at_every_step_is_flagged_and_not_stopped(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000, model=dict(layers=4, hidden=128, ffn=512)))
            cluster.wait_step(job, 30)
            pid, over = cluster.rank_pids(job)[1], threading.Event()

            def hold_up():  # Half of its time, a little at a time.
                while not over.is_set():
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.01)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.01)
            holder = threading.Thread(target=hold_up)
            holder.start()
            try:
                found = wait_until(lambda: condition(cluster.job(job), "STRAGGLER"), "the straggler is flagged", timeout=40)
            finally:
                over.set()
                holder.join()
            self.assertTrue(found.startswith("rank 1 on node "), found)
            self.assertIn("times the gang's median", found)
            wait_until(lambda: not condition(cluster.job(job), "STRAGGLER"), "it is well again", timeout=40)
            now = cluster.job(job)
            self.assertEqual((now["state"], now["epoch"]), ("RUNNING", "1"))
            cluster.telar("cancel", job)
            cluster.wait_state(job, "CANCELLED")


class ElasticTest(unittest.TestCase):
    def test_replicas_follow_the_nodes_and_the_losses_stay(self):
        # At a rate at which rounding does not grow much over so many steps.
        wanted = dict(steps=2500, batch=dict(micro=2), optimizer=dict(learning_rate=2e-4), checkpoint=dict(every_steps=20), restart=dict(hang_seconds=600))
        with Cluster(coordinator_options=("--grow-after", "1s")) as cluster:
            job = cluster.submit(spec(cluster.text, parallel=dict(elastic=dict(min_data=1)), **wanted))
            cluster.wait_step(job, 60)
            self.assertEqual(cluster.job(job)["data_parallel"], 2)
            cluster.kill_node("b")
            wait_until(lambda: cluster.job(job).get("data_parallel") == 1, "one replica is placed", timeout=30)
            cluster.wait_state(job, "RUNNING")
            self.assertEqual(condition(cluster.job(job), "SHRUNK"), "runs with 1 of 2 replicas: there were no devices for more")
            cluster.wait_step(job, cluster.last_step(job) + 30)
            cluster.start_worker("b")
            wait_until(lambda: cluster.job(job).get("data_parallel") == 2, "both are placed again", timeout=30)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual((done["epoch"], done.get("restarts", 0), done["node_restarts"]), ("3", 0, 1))
            self.assertEqual(condition(done, "SHRUNK"), "")
            unbroken = cluster.submit(spec(cluster.text, **wanted))
            cluster.wait_state(unbroken, "SUCCEEDED")
            first, second = cluster.curve(unbroken), cluster.curve(job)
            self.assertEqual(list(first), list(second))
            for step in first:
                self.assertAlmostEqual(float(first[step]), float(second[step]), delta=1e-5, msg=f"step {step}")


if __name__ == "__main__":
    unittest.main()
