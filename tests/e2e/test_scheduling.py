"""What the scheduler does to running jobs: they save, wait or move, and go on as if nothing had been."""
import re
import signal
import unittest

from cluster import Cluster, spec, wait_until

STEPS = 500


class SchedulingTest(unittest.TestCase):
    def test_an_urgent_job_lets_another_save_first(self):
        queues = [dict(name="urgent", priority=10, preempt=True)]
        with Cluster(queues=queues) as cluster:
            low = cluster.submit(spec(cluster.text, steps=STEPS))
            cluster.wait_step(low, 20)
            high = cluster.submit(spec(cluster.text, steps=20, scheduling=dict(queue="urgent")))
            cluster.wait_state(high, "SUCCEEDED")
            done = cluster.wait_state(low, "SUCCEEDED")
            self.assertEqual((done["preemptions"], done.get("restarts", 0), done.get("node_restarts", 0)), (1, 0, 0))
            self.assertEqual(done["epoch"], "2")
            saved = int(re.search(r"step-(\d+)$", done["progress"]["resumed_from"]).group(1))
            self.assertGreaterEqual(saved, 20)
            self.assertEqual(list(cluster.curve(low)), list(range(1, STEPS + 1)), "no step is lost or done twice")
            self.assertIn(f"preempted by projects/default/jobs/{high}", cluster.telar("watch", low).stderr)

            # The file is read again on SIGHUP; one with mistakes changes nothing.
            (cluster.folder / "queues.yaml").write_text("queues: [{name: night, weight: 0}]")
            cluster.coordinator.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "queues[0].weight: 0" in cluster.coordinator.log.read_text(), "the mistake is logged")
            (cluster.folder / "queues.yaml").write_text("queues: [{name: night}]")
            cluster.coordinator.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "night" in cluster.telar("queues", "-o", "name").stdout, "the new queue is there")

    def test_a_drained_node_is_left_and_explained(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=STEPS, devices=1))
            cluster.wait_step(job, 20)
            node = cluster.job(job)["placement"][0]["node"]
            other = {"a": "b", "b": "a"}[node]
            cluster.telar("nodes", "drain", node, "--reason", "its fan")
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual(done["placement"][0]["node"], other)
            self.assertEqual((done["epoch"], done.get("restarts", 0), done.get("node_restarts", 0)), ("2", 0, 0))
            self.assertEqual(list(cluster.curve(job)), list(range(1, STEPS + 1)))

            def scheduling():
                return {one["name"]: one["scheduling"] for one in cluster.json("nodes")["nodes"]}
            self.assertEqual(scheduling(), {node: "DRAINED", other: "OPEN"})
            # The decision outlives the coordinator.
            cluster.coordinator.kill()
            cluster.start_coordinator(cluster.address)
            cluster.wait_nodes(2)
            self.assertEqual(scheduling(), {node: "DRAINED", other: "OPEN"})
            two = cluster.submit(spec(cluster.text, steps=20))
            why = wait_until(lambda: cluster.job(two).get("waiting"), "it is said why it waits")
            self.assertEqual(why["reason"], "NODES")
            page = cluster.telar("explain", two).stdout
            self.assertRegex(page, f"Starts once: these are open again: {node}\n")
            tried = cluster.telar("submit", cluster.write_spec(spec(cluster.text, steps=20, devices=1)), "--dry-run")
            self.assertRegex(tried.stderr, rf"starts? at once, on 1 device[^$]*\b{other} +cpu:0")
            cluster.telar("nodes", "uncordon", node)
            cluster.wait_state(two, "SUCCEEDED")


if __name__ == "__main__":
    unittest.main()
