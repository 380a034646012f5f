"""Gangs under a worker that flaps, who pays for which restart, and a crowd of jobs under random faults: by
TELAR_FAULTS_SEED, for TELAR_FAULTS_SECONDS."""
import os
import random
import signal
import threading
import time
import unittest

from rig import HEARTBEAT, LEASE, PATIENCE, SCALE, Rig, failure_name, state_name, wait_until

SEED = int(os.environ.get("TELAR_FAULTS_SEED", "7"))
SECONDS = float(os.environ.get("TELAR_FAULTS_SECONDS", str(30 * SCALE)))


def send_if_alive(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It ended since it was listed.


class GangTest(unittest.TestCase):
    def test_two_that_do_not_fit_together_and_a_worker_that_flaps(self):
        with Rig(workers={"a": 4, "b": 4}) as rig:
            words = "started pause:300 finish"
            jobs = {rig.client.submit(rig.fake(words, devices=count)): count for count in (8, 6, 8, 2)}
            start, flaps = time.monotonic(), 0
            while True:
                views = rig.client.list().jobs
                for view in views:  # All or nothing: whoever is placed is placed whole.
                    self.assertIn(len(view.placement), (0, jobs[view.name]))
                taken = sum(len(view.placement) for view in views if state_name(view) in ("STARTING", "RUNNING"))
                self.assertLessEqual(taken, 8)
                if all(view.HasField("end_time") for view in views):
                    break
                if flaps < 4 and time.monotonic() > start + flaps * HEARTBEAT:
                    flaps += 1
                    rig.restart_worker("b")
                self.assertLess(time.monotonic(), start + PATIENCE)
                time.sleep(0.02)
            self.assertEqual([state_name(view) for view in views], ["SUCCEEDED"] * 4)
            rig.check_clean()

    def test_members_that_die_while_they_meet(self):
        with Rig(workers={"a": 1, "b": 1, "c": 1}) as rig:
            words = "pause:400 started pause:400 finish"
            job = rig.client.submit(rig.fake(words, devices=2, restart=dict(backoff_seconds=0)))
            for epoch in (1, 2):
                victim = wait_until(lambda: [pid for pid, path in rig.rank_processes().items() if f"/{epoch}/1" in path],
                                    "rank 1 lives")[0]
                os.kill(victim, signal.SIGKILL)
            end = rig.wait(job, "SUCCEEDED")
            self.assertEqual((end.epoch, end.restarts), (3, 2))
            rig.check_clean()


class AccountTest(unittest.TestCase):
    """Only what a job does to itself spends restart.max_restarts."""

    def test_lost_nodes_and_drains_are_not_its_own_fault(self):
        with Rig(workers={"a": 1, "b": 1}) as rig:
            job = rig.client.submit(rig.fake("started run:20", restart=dict(max_restarts=0, max_node_restarts=5)))
            for turn in range(3):
                node = rig.wait_epoch(job, turn + 1).placement[0].node
                if turn == 1:
                    rig.workers[node].terminate()  # --stop-ranks-on-exit: its state is saved.
                else:
                    rig.kill_node(node)
                rig.wait_epoch(job, turn + 2)
                rig.start_worker(node)
                rig.wait_node(node, "READY")
            view = rig.client.get(job)
            self.assertEqual((view.restarts, view.node_restarts), (0, 2))
            rig.end(job)

    def test_its_own_failures_are_and_the_end_is_the_end(self):
        with Rig(workers={"a": 1}) as rig:
            job = rig.client.submit(rig.fake("started exit:1", restart=dict(max_restarts=2, backoff_seconds=0)))
            end = rig.wait(job, "FAILED")
            self.assertEqual((end.restarts, end.node_restarts, end.epoch), (2, 0, 3))
            rig.restart_coordinator()
            rig.restart_worker("a")
            rig.wait_node("a", "READY")
            time.sleep(2 * HEARTBEAT)
            again = rig.client.get(job)
            self.assertEqual((state_name(again), again.epoch), ("FAILED", 3))
            rig.check_clean()

    def test_restarts_that_bring_nothing_come_to_an_end_whatever_is_left(self):
        with Rig(workers={"a": 1}) as rig:
            job = rig.client.submit(rig.fake("started exit:1", restart=dict(max_restarts=50, max_without_progress=2)))
            end = rig.wait(job, "FAILED")
            self.assertEqual((end.restarts, end.without_progress, end.epoch), (2, 2, 3))
            self.assertEqual(failure_name(end), "NO_PROGRESS")
            self.assertIn("2 restarts in a row brought no newer checkpoint and no step behind 0", end.message)
            rig.check_clean()

    def test_an_exit_code_says_that_a_retry_would_fail_again(self):
        with Rig(workers={"a": 1}) as rig:
            end = rig.wait(rig.client.submit(rig.fake("started exit:11")), "FAILED")
            self.assertEqual((end.restarts, end.epoch, failure_name(end)), (0, 1, "CONFIG"))
            self.assertIn("exit code 11", end.message)
            rig.check_clean()


class RandomTest(unittest.TestCase):
    """Clients submit, cancel and read while daemons die, stop and lose each other."""

    WORDS = ("started step:3 print:x finish", "started pause:150 finish", "started run:20", "started once:exit:1 finish",
             "started fork pause:100 finish", "ignore_term started pause:200 finish")

    def clients(self, rig, draw, names, stop):
        client = rig.new_client()
        number = 0
        while not stop.is_set():
            dice = draw.random()
            if dice < 0.25 and len(names) < 25:
                number += 1
                content = rig.fake(draw.choice(self.WORDS), devices=draw.choice((1, 1, 2)),
                                   restart=dict(backoff_seconds=0, max_node_restarts=50, max_restarts=50,
                                                max_without_progress=0))
                key = f"{draw.random()}-{number}"
                for _ in range(draw.choice((1, 1, 2, 3))):  # Also again after an answer.
                    job = client.submit_once(content, key)
                    if job is not None:
                        names.append(job.name)
            elif dice < 0.4 and names:
                client.cancel_once(draw.choice(names), f"c-{draw.random()}")
            elif dice < 0.7 and names:
                client.get(draw.choice(names))
            else:
                client.list()
            time.sleep(draw.random() * 0.1)

    def strike(self, rig, draw):
        name = draw.choice(("a", "b"))
        what = draw.choice(("coordinator", "coordinator", "worker", "rank", "cut", "reset", "stop", "store"))
        if what == "coordinator":
            rig.restart_coordinator()
        elif what == "store":
            point = draw.choice(("begin", "written", "committed"))
            rig.forget_strikes()
            rig.restart_coordinator(f"coordinator.store.{point}:kill:{draw.randint(1, 12)}")
            time.sleep(HEARTBEAT)
            rig.restart_coordinator()
        elif what == "worker":
            rig.workers[name].kill()
            time.sleep(draw.choice((0, 0, 1.3 * LEASE)))
            rig.restart_worker(name)
        elif what == "rank":
            for pid in draw.sample(sorted(rig.rank_processes()), k=min(1, len(rig.rank_processes()))):
                send_if_alive(pid, signal.SIGKILL)
        elif what == "reset":
            rig.proxies[name].reset()
        elif what == "cut":
            rig.proxies[name].set(draw.choice(("hold", "hold_up", "hold_down")))
            time.sleep(draw.choice((0.5, 1.3)) * LEASE)
            rig.proxies[name].set("pass")
        else:
            frozen = [pid for pid, command in rig.processes().items() if str(rig.state(name)) in command]
            for pid in frozen:
                send_if_alive(pid, signal.SIGSTOP)
            time.sleep(draw.choice((0.3, 1.3)) * LEASE)
            for pid in frozen:
                send_if_alive(pid, signal.SIGCONT)
        return what

    def test_random_faults(self):
        draw = random.Random(SEED)
        with Rig(workers={"a": 2, "b": 2}, proxied=("a", "b")) as rig:
            names, stop = [], threading.Event()
            threads = [threading.Thread(target=self.clients, args=(rig, random.Random(SEED + number), names, stop))
                       for number in (1, 2)]
            for thread in threads:
                thread.start()
            start, strikes = time.monotonic(), []
            try:
                while time.monotonic() < start + SECONDS:
                    time.sleep(draw.random() * 2 * HEARTBEAT)
                    strikes.append(self.strike(rig, draw))
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            if not rig.coordinator.running():
                rig.restart_coordinator()
            for name in ("a", "b"):
                rig.wait_node(name, "READY")
            for name in sorted(set(names)):  # Most end by themselves; the endless ones are told to.
                if not rig.client.get(name).HasField("end_time"):
                    rig.client.cancel_once(name, "")
            wait_until(lambda: all(job.HasField("end_time") for job in rig.client.list().jobs), "every job is over")
            print(f"seed {SEED}: {len(set(names))} jobs, {len(rig.history)} calls, strikes: {' '.join(strikes)}")
            rig.check_clean(lossy=True)


if __name__ == "__main__":
    unittest.main()
