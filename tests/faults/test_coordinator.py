"""The coordinator dies at each of its durable steps, or cannot take them. Nothing that was answered is lost."""
import time
import unittest

from rig import PATIENCE, Rig

SHORT = "started step:2 print:a pause:60 step:1 print:b finish"
COMMITS = 14  # About as many as a job of one rank takes, from its request to its end.


class KilledTest(unittest.TestCase):
    """For each N, the N-th time that it comes by: with jobs waiting, starting, running, ending and being cancelled."""
    def run_through(self, point, times):
        with Rig(workers={"a": 2}) as rig:
            recovery = []
            for turn in times:
                fault = f"{point}:kill:{turn}"
                rig.forget_strikes()
                rig.restart_coordinator(fault)
                jobs = [rig.client.until_answered(lambda key=f"{fault}-{i}": self.submit(rig, fault, key)).name for i in (0, 1)]
                self.go_on(rig, fault, lambda: rig.client.cancel(jobs[1]))
                ends = [self.go_on(rig, fault, lambda job=job, states=states: rig.wait(job, *states, timeout=5))
                        for job, states in zip(jobs, (("SUCCEEDED",), ("CANCELLED", "SUCCEEDED")))]
                self.assertEqual([end.epoch for end in ends[:1]], [1], "no process was touched, so there is no other epoch")
                self.assertEqual([end.restarts for end in ends], [0, 0])
                if rig.struck(fault):
                    recovery.append(turn)
            self.assertGreater(len(recovery), len(times) // 2, f"{point} struck at {recovery} only")
            rig.check_clean()

    def submit(self, rig, fault, key):
        return self.go_on(rig, fault, lambda: rig.client.submit_once(rig.fake(SHORT), key))

    def go_on(self, rig, fault, step):
        """Tries `step` until it comes through; starts the coordinator again whenever it died of the fault."""
        end = time.monotonic() + PATIENCE
        while True:
            if not rig.coordinator.running():
                self.assertTrue(rig.struck(fault), "died of something else")
                start = time.monotonic()
                rig.restart_coordinator()
                rig.client.until_answered(rig.client.list)
                rig.figures["coordinator's restart, longest"] = max(rig.figures.get("coordinator's restart, longest", 0),
                                                                    time.monotonic() - start)
            try:
                answer = step()
                if answer is not None:
                    return answer
            except AssertionError:
                if rig.coordinator.running():
                    raise
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_killed_before_storing(self):
        self.run_through("coordinator.store.begin", range(1, COMMITS + 1))

    def test_killed_with_all_written_and_nothing_stored(self):
        self.run_through("coordinator.store.written", range(1, COMMITS + 1))

    def test_killed_before_answering(self):
        self.run_through("coordinator.store.committed", range(1, COMMITS + 1))

    def test_killed_around_a_log_append(self):
        for point in ("coordinator.log.begin", "coordinator.log.written", "coordinator.log.synced"):
            with self.subTest(point):
                self.run_through(point, range(1, 4))


class RefusedTest(unittest.TestCase):
    """The store says no."""

    def test_an_error_is_told_and_a_retry_makes_one_job(self):
        for action, code in (("error", "UNAVAILABLE"), ("enospc", "RESOURCE_EXHAUSTED")):
            with self.subTest(action), Rig(workers={"a": 1}) as rig:
                rig.restart_coordinator(f"coordinator.store:{action}")
                self.assertIsNone(rig.client.submit_once(rig.fake(SHORT), "one"))
                self.assertEqual(rig.history[-1].code, code)
                job = rig.client.submit(rig.fake(SHORT), "one")
                self.assertEqual(rig.client.submit(rig.fake(SHORT), "one"), job)
                rig.wait(job, "SUCCEEDED")
                self.assertEqual(len(rig.client.list().jobs), 1)
                rig.check_clean()

    def test_no_room_for_whatever_is_to_be_stored(self):
        with Rig(workers={"a": 1}) as rig:
            for turn in range(2, COMMITS):
                rig.forget_strikes()
                rig.restart_coordinator(f"coordinator.store:enospc:{turn}")
                rig.wait_node("a", "READY")
                job = rig.client.submit(rig.fake(SHORT))
                self.assertEqual(rig.wait(job, "SUCCEEDED").restarts, 0)
            rig.check_clean()

    def test_no_room_for_logs(self):
        with Rig(workers={"a": 1}) as rig:
            for point in ("coordinator.log.begin", "coordinator.log.written"):
                rig.forget_strikes()
                rig.restart_coordinator(f"{point}:enospc:1")
                job = rig.client.submit(rig.fake(SHORT))
                self.assertEqual(rig.wait(job, "SUCCEEDED").restarts, 0)
                self.assertTrue(rig.struck(point))
            rig.check_clean()


if __name__ == "__main__":
    unittest.main()
