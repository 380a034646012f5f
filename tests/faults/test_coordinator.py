"""The coordinator dies at each of its durable steps, or cannot take them. Nothing that was answered is lost."""
import time
import unittest

from rig import PATIENCE, Rig, state_name

SHORT = "started step:2 print:a pause:60 step:1 print:b finish"
COMMITS = 14  # About as many as a job of one rank takes, from its request to its end.


class KilledTest(unittest.TestCase):
    """For each N, the N-th time that it comes by: with jobs waiting, starting, running, ending and being cancelled."""

    def run_through(self, point, times):
        with Rig(workers={"a": 2}) as rig:
            struck = []
            for turn in times:
                fault = f"{point}:kill:{turn}"
                rig.forget_strikes()
                rig.restart_coordinator(fault)
                jobs = [self.go_on(rig, fault, lambda key=f"{fault}-{i}": rig.client.submit_once(rig.fake(SHORT), key)).name
                        for i in (0, 1)]
                self.go_on(rig, fault, lambda job=jobs[1]: self.cancel(rig, job, fault))
                ends = [self.go_on(rig, fault, lambda job=job: self.end_of(rig, job)) for job in jobs]
                self.assertEqual([state_name(end) for end in ends][0], "SUCCEEDED", ends[0].message)
                self.assertIn(state_name(ends[1]), ("CANCELLED", "SUCCEEDED"), ends[1].message)
                self.assertEqual((ends[0].epoch, ends[0].restarts, ends[1].restarts), (1, 0, 0), "no process was touched")
                struck += [turn] if rig.struck(fault) else []
            self.assertGreaterEqual(len(struck), len(times) // 3, f"{point} struck at {struck} only")
            rig.check_clean()

    @staticmethod
    def cancel(rig, job, key):
        return rig.client.cancel_once(job, key) or rig.history[-1].code == "FAILED_PRECONDITION"  # It is over by then.

    @staticmethod
    def end_of(rig, job):
        view = rig.client.get(job)
        return view if view is not None and view.HasField("end_time") else None

    def go_on(self, rig, fault, step):
        """Tries `step` until it comes through; starts the coordinator again whenever it died of the fault."""
        end = time.monotonic() + PATIENCE
        while True:
            if not rig.coordinator.running():
                self.assertTrue(rig.struck(fault), "died of something else")
                start = time.monotonic()
                rig.restart_coordinator()
                rig.client.until_answered(rig.client.list)
                rig.figure("the coordinator answers after its restart", time.monotonic() - start)
            answer = step()
            if answer:
                return answer
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

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
                rig.wait_node("a", "READY")
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
                rig.wait_node("a", "READY")
                job = rig.client.submit(rig.fake(SHORT))
                self.assertEqual(rig.wait(job, "SUCCEEDED").restarts, 0)
                self.assertTrue(rig.struck(point))
            rig.check_clean()


if __name__ == "__main__":
    unittest.main()
