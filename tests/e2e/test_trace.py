"""A step of a job that runs, traced from another machine: the wish, the files of all ranks, and the one that they become."""
import json
import signal
import unittest

from cluster import Cluster, spec, wait_until


def faults(trace):
    """What keeps Perfetto from drawing a joined trace as it is meant."""
    slices, flows, named, found = {}, {}, set(), []
    for event in trace["traceEvents"]:
        row = (event["pid"], event.get("tid", 0))
        if event["ph"] == "M":
            named.add((event["name"], row))
        elif event["ph"] == "X":
            slices.setdefault(row, []).append((event["ts"], event["ts"] + event["dur"]))
        else:
            flows.setdefault(event["id"], []).append(event)
    for row, times in slices.items():
        times.sort()
        found += [f"{row}: slices overlap at {b[0]}" for a, b in zip(times, times[1:]) if b[0] < a[1] - 1e-6]
        found += [f"{row} has no {name}" for name in ("thread_name", "thread_sort_index") if (name, row) not in named]
        found += [f"{row} has no {name}" for name in ("process_name", "process_sort_index") if (name, (row[0], 0)) not in named]
    for number, events in flows.items():
        kinds = "".join(event["ph"] for event in events)
        if kinds != "s" + "t" * (len(events) - 2) + "f" or events[-1].get("bp") != "e":
            found.append(f"flow {number} is {kinds}")
        if [event["ts"] for event in events] != sorted(event["ts"] for event in events):
            found.append(f"flow {number} goes back in time")
        for event in events:
            row = slices.get((event["pid"], event["tid"]), [])
            if not any(start <= event["ts"] < stop for start, stop in row):
                found.append(f"flow {number} has an end in no slice")
    return found


class TraceTest(unittest.TestCase):
    def test_a_step_of_four_ranks_on_two_nodes(self):
        with Cluster({"a": 2, "b": 2}) as cluster:
            content = spec(cluster.text, steps=100_000, devices=4, parallel=dict(data=2, pipeline=2), batch=dict(micro=2),
                           trace=dict(steps=[3]))
            job = cluster.submit(content)
            cluster.wait_step(job, 20)
            self.check_traced(cluster, job)
            self.check_named_by_the_spec(cluster, job)
            self.check_refused(cluster, job)
            self.check_left(cluster, job)
            cluster.telar("cancel", job)
            cluster.wait_state(job, "CANCELLED")

    def check_traced(self, cluster, job):
        path = cluster.folder / "next.json"
        made = cluster.telar("trace", job, "--step", "next", "--to", path)
        self.assertIn("4 ranks; clocks compared by round trips, to within", made.stderr)
        self.assertEqual([line.split()[0] for line in made.stdout.splitlines()], ["RANK", "0", "1", "2", "3"])
        trace = json.loads(path.read_text())
        self.assertEqual(faults(trace), [])
        self.assertEqual(trace["otherData"] | {"arrows": 0}, dict(clocks="round trips", consistent=True, arrows=0,
                                                                 arrows_left_out=0, single_ends=0))
        told = trace["telar"]
        self.assertEqual([(one["rank"], one["pp"], one["dp"], one["epoch"]) for one in told],
                         [(0, 0, 0, 1), (1, 0, 1, 1), (2, 1, 0, 1), (3, 1, 1, 1)])
        for one in told:  # One machine: whatever was measured, there is no difference.
            self.assertLessEqual(abs(one["clock"]["to_first"]), one["clock"]["to_first_error"] + 1e-9, one)
        kinds = [event.get("args", {}).get("comm") for event in trace["traceEvents"] if event["ph"] == "X"]
        arrows = [event["cat"] for event in trace["traceEvents"] if event["ph"] == "s"]
        self.assertEqual(kinds.count("send"), 2 * 2 * 2)  # Replicas, micro-batches, there and back.
        self.assertEqual(arrows.count("message"), kinds.count("send"))
        self.assertEqual(arrows.count("micro-batch"), 2 * 2)
        self.assertGreater(arrows.count("collective"), 2)
        # From the coordinator it comes again, and from the run's folder it is the same.
        step = told[0]["step"]
        again, here = cluster.folder / "again.json", cluster.folder / "here.json"
        cluster.telar("trace", job, "--step", step, "--to", again)
        cluster.telar("trace", cluster.run_dir(job), "--step", step, "--to", here)
        self.assertEqual(again.read_text(), path.read_text())
        self.assertEqual(here.read_text(), path.read_text())
        wishes = [file.read_text() for file in cluster.folder.glob("worker-*/ranks/*/1/*/wishes.json")]
        self.assertEqual([json.loads(text) for text in wishes], [{"trace_steps": [str(step)]}] * 4)

    def check_named_by_the_spec(self, cluster, job):
        states = {trace["step"]: trace["state"] for trace in cluster.job(job)["traces"]}
        self.assertEqual(states["3"], "RECORDED")
        path = cluster.folder / "three.json"
        cluster.telar("trace", job, "--step", 3, "--steps", 1, "--to", path)
        self.assertEqual(faults(json.loads(path.read_text())), [])

    def check_refused(self, cluster, job):
        refused = cluster.telar("trace", job, "--step", 5, code=7)
        self.assertRegex(refused.stderr, r"step 5 cannot be traced any more: it is at step \d+, and the nearest that can be had is \d+")
        cluster.telar("trace", job, "--step", 100_001, code=2)
        cluster.telar("trace", job, "--step", 90_000, "--wait-timeout", "200ms", code=6)

    def check_left(self, cluster, job):
        with cluster.spawn("trace", job, "--step", "99000") as process:
            wait_until(lambda: any(trace["step"] == "99000" for trace in cluster.job(job)["traces"]), "it is wanted")
            process.stderr.readline()  # It waits, and can be left.
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=20), 0)
            self.assertIn("left; the ranks record it all the same", process.stderr.read())


if __name__ == "__main__":
    unittest.main()
