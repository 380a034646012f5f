"""A machine each, and what happens to networks: cables, firewalls, one-way loss, machines that are gone without a word.
Skipped, with the reason, where no network namespaces can be made."""
import contextlib
import json
import time
import unittest

import namespaces
import network
from rig import HEARTBEAT, LEASE, PATIENCE, Rig, spec, state_name, wait_until

LONG = "started run:20"


class NetTest(namespaces.OwnNamespaces):
    @contextlib.contextmanager
    def cluster(self, *workers, **options):
        with network.Net("c", *workers) as net, Rig(workers={name: 1 for name in workers}, net=net, **options) as rig:
            yield rig

    def nobody_is_lost(self, rig, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for node in rig.nodes().values():
                self.assertNotEqual(node.State.Name(node.state), "LOST", f"{end - time.monotonic():.1f} s before the end")
            time.sleep(0.05)

    def heard_again(self, rig, job):
        """Seconds until a step is known that was made after now; what is said is in the coordinator's store by then."""
        start = time.monotonic()
        number = 0

        def newer():
            view = rig.client.get(job)
            return view is not None and view.progress.step > number + 1
        number = wait_until(lambda: rig.client.get(job), "an answer").progress.step
        wait_until(newer, "a newer step is told of", pause=0.02)
        return time.monotonic() - start


class CableTest(NetTest):
    def test_out_for_less_than_a_lease(self):
        with self.cluster("a") as rig:
            job, before = rig.run(rig.fake(LONG))
            for name, out, back in (("a", rig.net.unplug, rig.net.plug), ("c", rig.net.unplug, rig.net.plug),
                                    ("a", lambda name: rig.net.interface(name, "down"), lambda name: rig.net.interface(name, "up"))):
                with self.subTest(name):
                    out(name)
                    time.sleep(0.7 * LEASE)
                    back(name)
                    rig.wait_node("a", "READY")
                    rig.figure("a step is told of after 0.7 leases without a cable", self.heard_again(rig, job))
                    rig.check_untouched(job, before)
            rig.end(job)

    def test_out_for_longer_and_nothing_of_the_old_epoch_counts(self):
        """Ranks that train: cut off from the coordinator they go on, and save, and ask in vain whether they may publish."""
        every, steps = 20, 600
        with self.cluster("a", "b", rank_program="telar-rank") as rig:
            job = rig.client.submit(spec(rig.text, steps=steps, devices=1, model=dict(layers=4, hidden=64, ffn=128),
                                         checkpoint=dict(every_steps=every, keep=1000)))
            node = rig.wait(job, "RUNNING").placement[0].node
            wait_until(lambda: rig.client.get(job).progress.step > 2 * every, "it trains", pause=0.02)
            old, cut = set(rig.rank_processes()), time.monotonic()
            known = rig.client.get(job).progress.step
            rig.net.unplug(node)
            rig.wait_node(node, "LOST")
            rig.figure("a machine without a cable is LOST", time.monotonic() - cut)
            view = rig.wait_epoch(job, 2)
            rig.figure("its job runs on a spare machine", time.monotonic() - cut)
            self.assertNotEqual(view.placement[0].node, node)
            wait_until(lambda: rig.client.get(job).progress.step > known, "the new epoch trains", pause=0.02)
            rig.net.plug(node)
            end = rig.wait(job, "SUCCEEDED", timeout=90)
            lost = end.goodput.lost_steps
            self.assertLessEqual(lost, 2 * every, "more than what no save had, and a save under way")
            rig.figure(f"lost with a machine, at a save every {every}", lost, "steps")
            wait_until(lambda: not old & set(rig.rank_processes()), "the old rank is gone")
            self.assertEqual((end.epoch, end.restarts, end.node_restarts), (2, 0, 1))
            name = job.rpartition("/")[2]
            saved = sorted(path.name for path in (rig.run_dir(name) / "ckpt").glob("step-*"))
            self.assertEqual(len(saved), steps // every, saved)
            self.assertEqual(list(rig.curve(name)), list(range(1, steps + 1)))
            rig.check_clean()


class HalfOpenTest(NetTest):
    """Connections of which one side, or what lies between, knows nothing any more. Within a lease both sides have new
    ones, and no job notices."""

    def test_forgotten_on_the_way(self):
        with self.cluster("a", "b") as rig:
            job, before = rig.run(rig.fake(LONG, devices=2))
            for name in ("a", "b"):
                rig.net.forget(name)
            self.nobody_is_lost(rig, 2 * LEASE)
            rig.check_untouched(job, before)
            rig.end(job)

    def test_a_coordinator_whose_machine_is_gone_and_back(self):
        with self.cluster("a") as rig:
            job, before = rig.run(rig.fake(LONG))
            rig.net.isolate("c")
            rig.coordinator.kill()
            rig.net.vanish("c")
            time.sleep(2 * HEARTBEAT)
            rig.net.heal()
            rig.net.connect("c")
            rig.start_coordinator()
            start = time.monotonic()
            rig.wait_node("a", "READY")
            rig.figure("a worker is back after the coordinator's machine was started again", time.monotonic() - start)
            self.assertLess(time.monotonic() - start, LEASE)
            rig.figure("a step is told of after that", self.heard_again(rig, job))
            rig.check_untouched(job, before)
            rig.end(job)

    def test_a_worker_whose_machine_is_gone_and_back(self):
        """Before its lease is over. The end of its rank, which nobody saw, is the machine's fault."""
        with self.cluster("a") as rig:
            job = rig.client.submit(rig.fake(LONG))
            rig.wait(job, "RUNNING")
            rig.net.isolate("a")
            gone = time.monotonic()
            rig.kill_node("a")
            rig.net.vanish("a")
            [record] = rig.state("a").glob("ranks/*/*/*/pid.json")
            record.write_text(json.dumps({**json.loads(record.read_text()), "boot_id": "of before"}))
            rig.net.heal()
            rig.net.connect("a")
            rig.start_worker("a")
            rig.wait_epoch(job, 2)
            rig.figure("a job runs again on a machine that was started again", time.monotonic() - gone)
            view = rig.client.get(job)
            self.assertEqual((view.restarts, view.node_restarts), (0, 1))
            rig.end(job, lossy=True)


class PartitionTest(NetTest):
    def test_one_way(self):
        for lost, name in ((("a", "c"), "what it says"), (("c", "a"), "what it is told")):
            with self.subTest(name), self.cluster("a", "b") as rig:
                job = rig.client.submit(rig.fake(LONG))
                node = rig.wait(job, "RUNNING").placement[0].node
                other = "b" if node == "a" else "a"
                cut = time.monotonic()
                rig.net.cut(*(node if one == "a" else one for one in lost))
                view = rig.wait_epoch(job, 2)
                rig.figure(f"a job runs elsewhere when {name} is lost", time.monotonic() - cut)
                self.assertEqual((view.placement[0].node, view.restarts, view.node_restarts), (other, 0, 1))
                rig.net.heal()
                rig.wait_node(node, "READY")
                wait_until(lambda: len(rig.rank_processes()) == 1, "the old process is gone")
                rig.end(job, lossy=True)

    def test_a_coordinator_that_nobody_reaches(self):
        """Ranks go on, for as long as it takes; then their epoch is over, as nobody heard of it."""
        with self.cluster("a", "b") as rig:
            job, before = rig.run(rig.fake(LONG, devices=2))
            for name in ("a", "b"):
                rig.net.part("c", name)
            for name in ("a", "b"):
                rig.wait_node(name, "LOST")
            time.sleep(LEASE)
            self.assertEqual(rig.rank_processes(), before)
            rig.net.heal()
            healed = time.monotonic()
            view = rig.wait_epoch(job, 2)
            rig.figure("a job runs again after the coordinator was alone for two leases", time.monotonic() - healed)
            self.assertEqual((view.restarts, view.node_restarts), (0, 1))
            self.assertFalse(set(before) & set(rig.rank_processes()))
            rig.end(job, lossy=True)

    def test_ranks_that_do_not_reach_each_other(self):
        """The daemons see the coordinator. Who pays is not the job, and it goes on when the network does."""
        for cuts in ((("a", "b"), ("b", "a")), (("a", "b"),)):
            with self.subTest(cuts), self.cluster("a", "b", rank_program="telar-rank") as rig:
                job = rig.client.submit(spec(rig.text, steps=100_000, checkpoint=dict(every_steps=50, stop_grace_seconds=1),
                                             restart=dict(hang_seconds=3)))
                rig.wait(job, "RUNNING")
                wait_until(lambda: rig.client.get(job).progress.step > 60, "it trains", pause=0.02)
                cut = time.monotonic()
                for one in cuts:
                    rig.net.cut(*one)
                wait_until(lambda: state_name(rig.client.get(job)) != "RUNNING", "it is noticed", pause=0.02)
                rig.figure("ranks that do not reach each other are noticed, at hang_seconds 3", time.monotonic() - cut)
                time.sleep(LEASE)
                rig.net.heal()
                step = rig.client.get(job).progress.step
                wait_until(lambda: rig.client.get(job).progress.step > step + 20, "it goes on", timeout=PATIENCE)
                view = rig.client.get(job)
                self.assertEqual(view.restarts, 0, [condition.message for condition in view.conditions])
                self.assertGreaterEqual(view.node_restarts, 1)
                rig.end(job)

    def test_a_slow_and_lossy_network(self):
        with self.cluster("a", "b", rank_program="telar-rank") as rig:
            rig.net.slow_down(0.02, 0.02, 0.02)
            job, before = rig.run(spec(rig.text, steps=100_000, checkpoint=dict(every_steps=10)))
            self.nobody_is_lost(rig, 2 * LEASE)
            wait_until(lambda: rig.client.get(job).progress.step > 10, "it trains")
            rig.check_untouched(job, before)
            rig.end(job)


if __name__ == "__main__":
    namespaces.enter(namespaces.NETWORK, *network.NEEDS)
    unittest.main()
