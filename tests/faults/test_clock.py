"""Wall clocks that are set by hours, of one daemon and its ranks at a time: tests/fakes/fake_wall.cc. Nothing is decided by
them, and what is counted goes on."""
import contextlib
import os
import pathlib
import signal
import tempfile
import time
import unittest

from proxy import Proxy
from rig import BIN, HEARTBEAT, LEASE, PATIENCE, Rig, job_id, spec, state_name, wait_until

import standby_cluster  # From tests/e2e, where the rig looks, too.
from cluster import answers

HOUR = 3600
LONG = "started run:20"
GRPC_SLEEP = 5  # Seconds in which the next of gRPC's timers comes, that of its pings at the latest.
TTL = 10  # Of a leader. Sooner than gRPC's own pings find a connection dead.
STEPS = (5 * HOUR, -5 * HOUR, 0)  # Ahead of everyone else's.


class ClockTest(unittest.TestCase):
    def setUp(self):
        if not (BIN / "libfake_wall.so").exists():
            self.skipTest("libfake_wall.so is not built, as under sanitizers")

    def test_leases_limits_and_counts_go_on(self):
        with Rig(workers={"a": 1, "b": 1}, clocks=True) as rig:
            start = time.monotonic()
            job, before = rig.run(rig.fake(LONG, devices=2, scheduling=dict(time_limit_seconds=HOUR)))
            for name in ("coordinator", "a", "b"):
                for ahead in STEPS:
                    rig.set_clock(name, ahead)
                    time.sleep(2 * HEARTBEAT)
                    for node in rig.nodes().values():
                        self.assertEqual(node.State.Name(node.state), "READY", f"{name} is {ahead} s ahead")
            time.sleep(1.2 * LEASE)
            view = rig.check_untouched(job, before)
            passed = time.monotonic() - start
            self.assertLess(view.run_seconds, passed)
            self.assertLess(view.goodput.productive_seconds, passed)
            self.assertGreater(view.goodput.productive_seconds, 0.5 * passed)
            rig.end(job)

    def test_a_worker_whose_clock_was_set_back_finds_the_coordinator_again(self):
        for silent in (False, True):
            with self.subTest("silent" if silent else "killed"):
                with Rig(workers={"a": 1}, proxied=("a",) if silent else (), clocks=True) as rig:
                    job, before = rig.run(rig.fake(LONG))
                    rig.set_clock("a", -HOUR)
                    time.sleep(HEARTBEAT)
                    if silent:
                        rig.proxies["a"].set("hold")
                        time.sleep(0.6 * LEASE)
                        rig.proxies["a"].set("pass")
                    else:
                        rig.coordinator.kill()
                        time.sleep(1.5 * LEASE)  # Long enough for every pause between dials to have come and gone.
                        rig.restart_coordinator()
                    start = time.monotonic()
                    rig.wait_node("a", "READY", timeout=2 * PATIENCE)
                    rig.figure("a worker whose clock was set back by an hour finds the coordinator", time.monotonic() - start)
                    time.sleep(1.2 * LEASE)
                    rig.check_untouched(job, before)
                    rig.end(job)

    def test_what_ranks_ask_and_tell_after_their_clock_was_set_back(self):
        """What gRPC waits for by itself, it then waits for an hour longer: that a call is late, that a connection is dead,
        and to dial again."""
        for silent in (False, True):
            with self.subTest("silent" if silent else "killed"), \
                    Rig(workers={"a": 1}, rank_program="telar-rank", proxied=("a",), clocks=True) as rig:
                job, before = rig.run(spec(rig.text, steps=1_000_000, devices=1, checkpoint=dict(every_steps=50, keep=2)))
                folder = rig.run_dir(job_id(job)) / "ckpt"

                def saved():
                    return max((path.name for path in folder.glob("step-*")), default="")

                def step():
                    return rig.client.until_answered(lambda: rig.client.get(job)).progress.step
                wait_until(saved, "one is saved")
                [rank] = before
                os.kill(rank, signal.SIGSTOP)  # So that no timer comes in between.
                rig.set_clock("a", -HOUR)
                time.sleep(GRPC_SLEEP)
                if silent:
                    rig.proxies["a"].forget()
                os.kill(rank, signal.SIGCONT)
                if not silent:
                    rig.coordinator.kill()
                    time.sleep(1.5 * LEASE)
                    rig.restart_coordinator()
                start, known, before_that = time.monotonic(), saved(), step()
                wait_until(lambda: step() > before_that, "steps are told of")
                rig.figure("a worker whose clock was set back by an hour tells of steps", time.monotonic() - start)
                wait_until(lambda: saved() > known, "a save counts")
                rig.figure("a rank whose clock was set back by an hour saves", time.monotonic() - start)
                rig.check_untouched(job, before)
                rig.end(job)

    def test_a_coordinator_whose_clock_was_set_back_gives_up_whom_it_should(self):
        with Rig(workers={"a": 1, "b": 1}, proxied=("a", "b"), clocks=True) as rig:
            rig.set_clock("coordinator", -HOUR)
            job = rig.client.submit(rig.fake(LONG))
            node = rig.wait(job, "RUNNING").placement[0].node
            rig.set_clock("coordinator", -2 * HOUR)
            cut = time.monotonic()
            rig.proxies[node].set("hold")
            rig.wait_epoch(job, 2)
            self.assertLess(time.monotonic() - cut, LEASE + PATIENCE / 2)
            rig.proxies[node].set("pass")
            rig.wait_node(node, "READY")
            rig.end(job, lossy=True)

    @unittest.skipIf(standby_cluster.MISSING, standby_cluster.MISSING)
    def test_a_coordinator_whose_connection_to_etcd_is_dead(self):
        """It leads on, also where its clock was set back so that no call of gRPC's is ever late."""
        for ahead in (0, -HOUR):
            with self.subTest(ahead), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                [port] = standby_cluster.free_ports(1)
                etcd = stack.enter_context(standby_cluster.start_etcd(pathlib.Path(folder), port))
                stack.callback(etcd.terminate)
                wait_until(lambda: answers(f"127.0.0.1:{port}"), "etcd listens")
                proxy = stack.enter_context(contextlib.closing(Proxy(f"127.0.0.1:{port}")))
                rig = stack.enter_context(Rig(workers={"a": 1}, clocks=True, coordinator_options=(
                    "--store", f"etcd://{proxy.address}", "--leadership-ttl", f"{TTL}s")))
                job, before = rig.run(rig.fake(LONG))
                rig.set_clock("coordinator", ahead)
                time.sleep(GRPC_SLEEP)
                proxy.forget()
                start = time.monotonic()
                second = rig.client.submit(rig.fake(LONG))
                rig.figure("a coordinator whose connection to etcd is dead takes a job", time.monotonic() - start)
                self.assertLess(time.monotonic() - start, TTL)
                rig.check_untouched(job, before)
                rig.end(second, job)

    def test_back_off(self):
        """Waits its time, however clocks are set meanwhile."""
        for ahead in STEPS[:2]:
            with self.subTest(ahead), Rig(workers={"a": 1}, clocks=True) as rig:
                job = rig.client.submit(rig.fake("started once:abort run:20",
                                                 restart=dict(backoff_seconds=2)))
                rig.wait(job, "QUEUED")
                start = time.monotonic()
                wait_until(lambda: rig.client.get(job).restarts == 1, "it failed")
                rig.set_clock("coordinator", ahead)
                rig.wait_epoch(job, 2)
                waited = time.monotonic() - start
                self.assertGreater(waited, 1.5)
                self.assertLess(waited, 2 + PATIENCE / 2)
                rig.end(job)

    def test_ranks_meet_and_save(self):
        """Real ones: clocks jump while they meet, and all the time that they train and save."""
        every, steps = 20, 400
        with Rig(workers={"a": 1, "b": 1}, rank_program="telar-rank", clocks=True) as rig:
            job = rig.client.submit(spec(rig.text, steps=steps, checkpoint=dict(every_steps=every, keep=100)))
            names, turn = ("a", "coordinator", "b"), 0
            while state_name(rig.client.until_answered(lambda: rig.client.get(job))) not in ("SUCCEEDED", "FAILED"):
                rig.set_clock(names[turn % 3], STEPS[turn // 3 % 3])
                turn += 1
                time.sleep(0.1)
            self.assertGreater(turn, 9)
            end = rig.wait(job, "SUCCEEDED")
            self.assertEqual((end.epoch, end.restarts, end.node_restarts), (1, 0, 0))
            name = job.rpartition("/")[2]
            self.assertEqual(len(list((rig.run_dir(name) / "ckpt").glob("step-*"))), steps // every)
            self.assertEqual(list(rig.curve(name)), list(range(1, steps + 1)))
            rig.check_clean()


if __name__ == "__main__":
    unittest.main()
