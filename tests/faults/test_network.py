"""Lines that go dead, slow, half open; nodes that fall silent and come back."""
import os
import signal
import time
import unittest

from rig import HEARTBEAT, LEASE, TERMINAL, Rig, spec, state_name, wait_until

LONG = "started run:20"


class SilenceTest(unittest.TestCase):
    def test_a_host_that_falls_silent(self):
        with Rig(workers={"a": 1, "b": 1, "c": 1}, proxied=("a", "b", "c")) as rig:
            job = rig.client.submit(rig.fake(LONG, devices=2))
            placed = [place.node for place in rig.wait(job, "RUNNING").placement]
            spare = ({"a", "b", "c"} - set(placed)).pop()
            silent = placed[1]
            cut = time.monotonic()
            rig.proxies[silent].set("hold")
            rig.wait_node(silent, "UNKNOWN")
            rig.figure("a silent host is UNKNOWN", time.monotonic() - cut)
            rig.wait_node(silent, "LOST")
            rig.figure("a silent host is LOST", time.monotonic() - cut)
            view = rig.wait_epoch(job, 2)
            rig.figure("after silence it runs on a spare node", time.monotonic() - cut)
            self.assertEqual({place.node for place in view.placement}, {placed[0], spare})
            self.assertEqual((view.restarts, view.node_restarts), (0, 1))
            rig.proxies[silent].set("pass")
            rig.wait_node(silent, "READY")
            wait_until(lambda: len(rig.rank_processes()) == 2, "the silent host's process is gone")
            rig.end(job)

    def test_a_line_that_breaks_and_comes_back_at_once(self):
        with Rig(workers={"a": 1}, proxied=("a",)) as rig:
            job, before = rig.run(rig.fake(LONG))
            for _ in range(6):
                rig.proxies["a"].reset()
                time.sleep(HEARTBEAT / 2)
            rig.wait_node("a", "READY")
            rig.check_untouched(job, before)
            rig.end(job)

    def test_silence_shorter_than_the_lease(self):
        with Rig(workers={"a": 1}, proxied=("a",)) as rig:
            job, before = rig.run(rig.fake(LONG))
            for mode in ("hold", "hold_up", "hold_down"):
                rig.proxies["a"].set(mode)
                time.sleep(0.6 * LEASE)
                rig.proxies["a"].set("pass")
                rig.wait_node("a", "READY")
            rig.check_untouched(job, before)
            rig.end(job)


class StartUnderWayTest(unittest.TestCase):
    """A job is cancelled while its worker is about to start it: it is not over before that is decided."""

    def check_not_over_early(self, rig, job, until):
        while not until():
            view = rig.client.get(job)
            if view is not None and state_name(view) in TERMINAL:
                self.assertFalse(rig.rank_processes(), "the job is over, and a process of it lives")
                held = [device.job for node in rig.nodes().values() for device in node.devices if device.job]
                self.assertFalse(held)
                return
            time.sleep(0.02)

    def test_assignments_that_arrive_late(self):
        with Rig(workers={"a": 1}, proxied=("a",)) as rig:
            rig.proxies["a"].set("hold_down")
            job = rig.client.submit(rig.fake(LONG))
            rig.wait(job, "STARTING")
            rig.client.cancel(job)
            quiet = time.monotonic() + 4 * HEARTBEAT
            self.check_not_over_early(rig, job, lambda: time.monotonic() > quiet)
            self.assertEqual(state_name(rig.client.get(job)), "CANCELLING", "the start may be under way")
            rig.proxies["a"].set("pass")
            rig.wait(job, "CANCELLED")
            time.sleep(HEARTBEAT)
            self.assertFalse(rig.rank_processes())
            rig.check_clean()

    def test_a_daemon_that_takes_long_to_start_it(self):
        with Rig(workers={"a": 1}) as rig:
            rig.restart_worker("a", f"plan.json.written:delay{int(4000 * HEARTBEAT)}")
            rig.wait_node("a", "READY")
            job = rig.client.submit(rig.fake(LONG))
            wait_until(lambda: rig.struck("plan.json.written"), "the start is under way")
            rig.client.cancel(job)
            over = time.monotonic() + 6 * HEARTBEAT
            self.check_not_over_early(rig, job, lambda: time.monotonic() > over)
            rig.wait(job, "CANCELLED")
            time.sleep(HEARTBEAT)
            self.assertFalse(rig.rank_processes())
            rig.check_clean()


class StaleMemberTest(unittest.TestCase):
    """The real rank: what a stopped node had begun must not count once it wakes up."""

    def freeze(self, rig, node):
        frozen = [pid for pid, command in rig.processes().items() if str(rig.state(node)) in command]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        return frozen

    def thaw(self, frozen):
        for pid in frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # The daemon, awake again, was quick to kill its old rank.

    def train(self, fault, every=20):
        with Rig(workers={"a": 1, "b": 1}, rank_program="telar-rank") as rig:
            for name in ("a", "b"):
                rig.restart_worker(name, fault)
            rig.wait_node("a", "READY")
            rig.wait_node("b", "READY")
            job = rig.client.submit(spec(rig.text, steps=400, devices=1, checkpoint=dict(every_steps=every, keep=100)))
            node = rig.wait(job, "RUNNING").placement[0].node
            wait_until(lambda: rig.struck(fault), f"{fault} strikes")
            frozen = self.freeze(rig, node)  # The rank has stopped itself in its save.
            rig.wait_epoch(job, 2)
            self.thaw(frozen)
            end = rig.wait(job, "SUCCEEDED", timeout=90)
            self.assertEqual((end.epoch, end.restarts, end.node_restarts), (2, 0, 1))
            saved = sorted(path.name for path in (rig.run_dir(job.rpartition("/")[2]) / "ckpt").glob("step-*"))
            self.assertEqual(len(saved), 400 // every)
            self.assertEqual(list(rig.curve(job.rpartition("/")[2])), list(range(1, 401)))
            rig.check_clean()

    def test_stopped_before_it_asks(self):
        self.train("save.staged:stop:2")

    def test_stopped_with_the_answer_in_hand(self):
        self.train("save.decided:stop:2")

    def test_stopped_behind_the_rename(self):
        self.train("save.published:stop:2")


if __name__ == "__main__":
    unittest.main()
