"""Gangs that hang though no process is stopped: who is named, who pays, and that they go on. With ranks that train."""
import time
import unittest

from rig import PATIENCE, Rig, spec, wait_until

HANG_SECONDS = 3
FOR_EVER = "delay3600000"


class HangTest(unittest.TestCase):
    def hang(self, fault):
        """Two replicas, of which that on node b meets `fault` in the middle of its training. The sentence, the number of its
        rank, and the job once it runs again."""
        with Rig(workers={"a": 1}, rank_program="telar-rank") as rig:
            rig.start_worker("b", fault=fault)
            rig.wait_node("b", "READY")
            job = rig.client.submit(spec(rig.text, steps=100_000, checkpoint=dict(stop_grace_seconds=1),
                                         restart=dict(hang_seconds=HANG_SECONDS)))
            placement = rig.wait_epoch(job, 1).placement
            rank = next(one.rank for one in placement if one.node == "b")
            wait_until(lambda: rig.struck(fault), "the fault strikes", timeout=PATIENCE)
            start = time.monotonic()

            def found():
                return next((one.message for one in rig.client.get(job).conditions if one.type == "HANG"), None)
            sentence = wait_until(found, "the hang is found", timeout=PATIENCE, pause=0.1)
            rig.figure("a gang that hangs is found and judged, behind restart.hang_seconds",
                       time.monotonic() - start - HANG_SECONDS)
            step = rig.client.get(job).progress.step
            self.assertGreater(step, 3)
            rig.wait_epoch(job, 2)
            wait_until(lambda: rig.client.get(job).progress.step > step + 50, "it goes on", timeout=PATIENCE)
            after = rig.client.get(job)
            rig.end(job)
            return sentence, rank, after

    def test_a_rank_whose_op_does_not_end_is_named_with_the_call_that_it_is_missing_from(self):
        sentence, rank, after = self.hang(f"rank.op:{FOR_EVER}:20000")
        self.assertRegex(sentence, rf"^rank {rank} on node b is not in [a-z_]+ [0-9]+ of group [a-z]+\.0 \(step [0-9]+\), "
                                   rf"which rank {1 - rank} waits in for [0-9]+ s \(epoch 1\)$")
        self.assertEqual((after.restarts, after.node_restarts), (1, 0))  # It was free to run.

    def test_of_a_call_that_all_are_in_and_that_does_not_end_nobody_is_named(self):
        sentence, _, after = self.hang(f"rank.call:{FOR_EVER}:400")
        self.assertRegex(sentence, r"has got nowhere in [a-z_]+ [0-9]+ of group [a-z]+\.0 \(step [0-9]+\) for [0-9]+ s; "
                                   r"no rank is missing from a call")
        self.assertEqual((after.restarts, after.node_restarts), (0, 1))  # As of a network that loses what is sent.


if __name__ == "__main__":
    unittest.main()
