"""Daemons, spawners and processes of a node die at each step that leaves a trace on its disk; within a lease, and beyond."""
import os
import signal
import time
import unittest

from rig import HEARTBEAT, LEASE, Rig, state_name, wait_until

SHORT = "started step:2 print:a pause:60 step:1 print:b finish"
LONG = "started run:20"


def bring_back(rig, name, fault):
    """As systemd does: whenever the daemon has ended, it is started again."""
    if not rig.workers[name].running():
        rig.restart_worker(name)


class StepTest(unittest.TestCase):
    """plan.json and shipped.json are the daemon's, pid.json and exit.json the spawner's."""

    def strike(self, action, points, restarts):
        with Rig(workers={"a": 1}) as rig:
            for point in points:
                with self.subTest(f"{point} {action}"):
                    fault = f"{point}:{action}"
                    rig.forget_strikes()
                    rig.restart_worker("a", fault)
                    rig.wait_node("a", "READY")
                    job = rig.client.submit(rig.fake(SHORT))

                    def over():
                        bring_back(rig, "a", fault)
                        view = rig.client.get(job)
                        return view if view is not None and view.HasField("end_time") else None
                    end = wait_until(over, lambda: f"the end of {job}: {rig.client.get(job)}")
                    self.assertTrue(rig.struck(fault), f"{point} was not struck")
                    self.assertEqual(state_name(end), "SUCCEEDED", end.message)
                    self.assertLessEqual(end.restarts + end.node_restarts, restarts, end.message)
            rig.check_clean()

    def test_daemon_killed(self):
        self.strike("kill", ("plan.json.begin", "plan.json.written", "shipped.json.begin", "shipped.json.written"), 0)

    def test_spawner_killed(self):
        # A process whose start is in doubt is killed, and an exit code that nobody wrote down costs a restart at most.
        self.strike("kill", ("pid.json.begin", "pid.json.written", "exit.json.begin", "exit.json.written"), 1)

    def test_no_room(self):
        # What cannot be started counts as the node's trouble with storage, and is tried again.
        self.strike("enospc", ("plan.json.begin", "pid.json.begin", "exit.json.begin", "shipped.json.begin"), 1)

    def test_slow(self):
        self.strike(f"delay{int(2500 * HEARTBEAT)}", ("plan.json.begin", "pid.json.written", "exit.json.begin"), 0)


class LeaseTest(unittest.TestCase):
    def test_killed_and_back_within_the_lease(self):
        with Rig(workers={"a": 1, "b": 1}) as rig:
            job, before = rig.run(rig.fake(LONG, devices=2))
            rig.workers["b"].kill()
            time.sleep(HEARTBEAT)
            self.assertEqual(rig.rank_processes(), before)
            rig.restart_worker("b")
            rig.wait_node("b", "READY")
            time.sleep(2 * HEARTBEAT)
            rig.check_untouched(job, before)
            rig.end(job)

    def test_killed_and_back_after_the_lease(self):
        with Rig(workers={"a": 1, "b": 1}) as rig:
            job = rig.client.submit(rig.fake(LONG))
            node = rig.wait(job, "RUNNING").placement[0].node
            other = "b" if node == "a" else "a"
            old = set(rig.rank_processes())
            killed = time.monotonic()
            rig.workers[node].kill()
            rig.wait_node(node, "LOST")
            rig.figure("a dead daemon is noticed", time.monotonic() - killed)
            view = rig.wait_epoch(job, 2)
            rig.figure("it runs elsewhere", time.monotonic() - killed)
            self.assertEqual((view.placement[0].node, view.restarts, view.node_restarts), (other, 0, 1))
            self.assertLessEqual(old, set(rig.rank_processes()), "nobody could reach the old process")
            second = rig.client.submit(rig.fake(LONG))  # Would fit on the node that is about to come back.
            rig.restart_worker(node)
            wait_until(lambda: not old & set(rig.rank_processes()), "the old process is killed")
            placed = rig.wait(second, "RUNNING").placement[0]
            self.assertEqual(placed.node, node)
            self.assertEqual(len(rig.rank_processes()), 2)
            rig.end(job, second)

    def test_processes_that_die_are_seen_at_once(self):
        with Rig(workers={"a": 1, "b": 1}) as rig:
            job = rig.client.submit(rig.fake(LONG, devices=2, restart=dict(backoff_seconds=0)))
            rig.wait(job, "RUNNING")
            victim = min(rig.rank_processes())
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: state_name(rig.client.get(job)) != "RUNNING", "it is noticed", pause=0.01)
            rig.figure("a dead rank is noticed", time.monotonic() - killed)
            rig.wait_epoch(job, 2)
            rig.figure("the gang runs again", time.monotonic() - killed)
            self.assertEqual(len(rig.rank_processes()), 2)
            rig.end(job)

    def test_a_coordinator_that_is_away_for_longer_than_the_lease(self):
        with Rig(workers={"a": 1}) as rig:
            job, before = rig.run(rig.fake(LONG))
            rig.coordinator.kill()
            time.sleep(1.5 * LEASE)
            self.assertEqual(rig.rank_processes(), before)
            rig.restart_coordinator()
            rig.wait_node("a", "READY")
            time.sleep(1.2 * LEASE)
            rig.check_untouched(job, before)
            rig.end(job)


if __name__ == "__main__":
    unittest.main()
