"""Coordinators that stand in for each other: the leader goes in every way there is; jobs do not notice."""
import signal
import time
import unittest

from cluster import spec, wait_until
from standby_cluster import MISSING, SecureStandbyCluster, StandbyCluster

FOR_EVER = 1_000_000
DEPOSED = 7


@unittest.skipIf(MISSING, MISSING)
class FailoverTest(unittest.TestCase):
    def check_undisturbed(self, cluster, job, ranks):
        """The same processes go on under the next leader, which ends them."""
        self.assertEqual(cluster.rank_pids(job), ranks)
        cluster.wait_step(job, cluster.last_step(job) + 20)
        self.assertEqual(cluster.wait_state(job, "RUNNING")["epoch"], "1")
        cluster.telar("cancel", job)
        done = cluster.wait_state(job, "CANCELLED")
        self.assertEqual((done.get("restarts", 0), done.get("node_restarts", 0), done["epoch"]), (0, 0, "1"))
        steps = list(cluster.curve(job))
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        for rank in (0, 1):
            printed = cluster.telar("logs", job, "--rank", rank).stdout
            self.assertEqual(printed, next(cluster.folder.glob(f"worker-*/finished/{job}.1.{rank}/log")).read_text())

    def test_leader_killed(self):
        with StandbyCluster() as cluster:
            leader = cluster.wait_leader()
            standby = cluster.other(leader)
            refused = cluster.telar("list", "--timeout", "1s", address=standby, code=5).stderr
            self.assertIn(f"the leader is {leader}", refused)
            job = cluster.submit(spec(cluster.text, steps=FOR_EVER, checkpoint=dict(every_steps=100)))
            with cluster.spawn("logs", job, "-f") as logs:
                cluster.wait_step(job, 60)
                ranks = cluster.rank_pids(job)
                queued = cluster.submit(spec(cluster.text, steps=5))
                cluster.coordinator.kill()
                away = cluster.last_step(job)
                with cluster.spawn("list") as patient:
                    self.assertLess(cluster.wait_answer(), 5)
                    self.assertEqual(patient.wait(timeout=20), 0)
                self.assertEqual(cluster.wait_leader(), standby)
                self.assertGreater(cluster.last_step(job), away)
                found = {one["name"].rpartition("/")[2]: one["state"] for one in cluster.jobs()}
                self.assertEqual(found, {job: "RUNNING", queued: "QUEUED"})
                self.check_undisturbed(cluster, job, ranks)
                self.assertEqual(logs.communicate(timeout=60)[0], cluster.telar("logs", job).stdout)
            cluster.wait_state(queued, "SUCCEEDED")

    def test_leader_frozen_past_its_lease(self):
        with StandbyCluster() as cluster:
            leader = cluster.wait_leader()
            frozen = cluster.coordinator
            job = cluster.submit(spec(cluster.text, steps=FOR_EVER))
            cluster.wait_step(job, 20)
            ranks = cluster.rank_pids(job)
            frozen.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: cluster.leads(cluster.other(leader)), "the standby leads", 10)
            frozen.process.send_signal(signal.SIGCONT)
            self.assertEqual(frozen.process.wait(timeout=10), DEPOSED)
            self.assertIn("leads no more", frozen.log.read_text())
            cluster.wait_leader()
            self.check_undisturbed(cluster, job, ranks)

    def test_leader_stopped_and_back_as_a_standby(self):
        """Behind certificates."""
        with SecureStandbyCluster() as cluster:
            for _ in range(2):
                leader = cluster.wait_leader()
                # A gang that is meeting goes on meeting through the next leader.
                job = cluster.submit(spec(cluster.text, steps=5))
                began = time.monotonic()
                self.assertEqual(cluster.coordinator.terminate(), 0)
                cluster.wait_answer()
                self.assertLess(time.monotonic() - began, 5)
                self.assertEqual(cluster.wait_leader(), cluster.other(leader))
                cluster.start_one(leader)
                done = cluster.wait_state(job, "SUCCEEDED")
                self.assertEqual(done.get("restarts", 0), 0)


if __name__ == "__main__":
    unittest.main()
