"""Disks that are really full: small file systems under the folders of the coordinator, of a worker and of a run. Mounts are
in a mount namespace of our own; skipped, with the reason, where none can be made. Logs: tests/e2e/test_health.py."""
import contextlib
import subprocess
import time
import unittest
import uuid

import namespaces
from rig import BIN, LEASE, Rig, failure_name, job_id, spec, state_name, wait_until

LONG = "started run:20"


class DiskTest(namespaces.OwnNamespaces):
    @contextlib.contextmanager
    def disk(self, folder, size):
        """A file system of that size, until the end."""
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            self.skipTest(f"no tmpfs: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", folder], check=True)

    @staticmethod
    def fill(folder):
        filler = folder / "filler"
        with filler.open("ab", buffering=0) as file:
            for size in (65536, 4096):  # Whole pages: then no file grows.
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        return filler


class StoreTest(DiskTest):
    def test_a_coordinator_without_room(self):
        """Says so, with the path; keeps what it acknowledged; loses no node and no step; takes all again when there is
        room."""
        with contextlib.ExitStack() as stack:
            rig = stack.enter_context(Rig(workers={}))
            rig.coordinator.terminate()
            data = stack.enter_context(self.disk(rig.folder / "data", "16m"))
            rig.restart_coordinator()
            rig.start_worker("a")
            rig.wait_node("a", "READY")
            job, before = rig.run(rig.fake(LONG))
            filler = self.fill(data)
            request = str(uuid.uuid4())

            def refused():
                return rig.client.submit_once(rig.fake(LONG), request) is None
            wait_until(refused, "a submit is refused")
            code, detail = rig.history[-1].code, rig.history[-1].detail
            self.assertIn(code, ("RESOURCE_EXHAUSTED", "UNAVAILABLE"))
            self.assertIn(str(data), detail)
            end = time.monotonic() + 1.5 * LEASE
            while time.monotonic() < end:
                self.assertEqual(state_name(rig.client.until_answered(lambda: rig.client.get(job))), "RUNNING")
                for node in rig.nodes().values():
                    self.assertEqual(node.State.Name(node.state), "READY")
                time.sleep(0.1)
            self.assertEqual(rig.rank_processes(), before)

            rig.coordinator.kill()  # As full as it is, it may be killed.
            try:
                rig.start_coordinator(rig.address)
                self.assertEqual(state_name(rig.client.until_answered(lambda: rig.client.get(job))), "RUNNING")
            except AssertionError as error:
                self.assertRegex(str(error), rf"ended with 4: (?s:.*){data}")
            filler.unlink()
            if not rig.coordinator.running():
                rig.restart_coordinator()
            rig.wait_node("a", "READY")
            second = rig.client.submit(rig.fake(LONG), request)
            self.assertEqual(rig.client.submit(rig.fake(LONG), request), second)
            step = rig.client.until_answered(lambda: rig.client.get(job)).progress.step
            wait_until(lambda: rig.client.get(job).progress.step > step, "steps are told of again")
            rig.check_untouched(job, before)
            rig.end(second, job)


class WorkerTest(DiskTest):
    def test_a_worker_without_room_for_a_new_rank(self):
        """What cannot be started there starts elsewhere, or later, and nothing of it is left."""
        with contextlib.ExitStack() as stack:
            rig = stack.enter_context(Rig(workers={}))
            state = stack.enter_context(self.disk(rig.state("a"), "1m"))
            rig.start_worker("a")
            rig.wait_node("a", "READY")
            filler = self.fill(state)
            job = rig.client.submit(rig.fake("started step:3 finish", restart=dict(max_restarts=20, max_without_progress=0)))
            wait_until(lambda: rig.client.get(job).restarts + rig.client.get(job).node_restarts > 0, "a start fails")
            self.assertIn("No space left on device", rig.client.get(job).message)
            filler.unlink()
            rig.wait(job, "SUCCEEDED")
            rig.check_clean()


class CheckpointTest(DiskTest):
    """Ranks that train; a checkpoint of theirs is some 400 KB."""

    def run_job(self, stack, **changes):
        rig = stack.enter_context(Rig(workers={}, rank_program="telar-rank"))
        runs = stack.enter_context(self.disk(rig.run_root, "4m"))
        rig.start_worker("a")
        rig.wait_node("a", "READY")
        job = rig.client.submit(spec(rig.text, devices=1, **changes))
        folder = rig.run_dir(job_id(job)) / "ckpt"
        wait_until(lambda: len(list(folder.glob("step-*"))) >= 2, "two are saved", pause=0.01)
        filler = self.fill(runs)
        return rig, job, folder, filler

    def good(self, folder):
        """Names of those whose every byte is right."""
        return [path.name for path in sorted(folder.glob("step-*"))
                if subprocess.run([BIN / "telar", "ckpt", "verify", path], capture_output=True, check=False).returncode == 0]

    def test_it_goes_on_without_saving_and_tells(self):
        with contextlib.ExitStack() as stack:
            rig, job, folder, filler = self.run_job(stack, steps=2000, checkpoint=dict(every_steps=200, keep=2))

            def told():
                log = rig.folder / "data/logs" / job_id(job) / "0.1.log"
                return log.exists() and "No space left on device" in log.read_text(errors="replace")
            wait_until(told, "the log tells of it")
            self.assertTrue(self.good(folder), "a good one is left")
            filler.unlink()
            end = rig.wait(job, "SUCCEEDED", timeout=120)
            self.assertEqual((end.epoch, end.restarts, end.progress.step), (1, 0, 2000))
            self.assertIn("step-00002000", " ".join(self.good(folder)))
            rig.check_clean()

    def test_after_too_many_it_starts_again_from_the_last_good_one(self):
        with contextlib.ExitStack() as stack:
            rig, job, folder, filler = self.run_job(stack, steps=1000, checkpoint=dict(every_steps=50, keep=2),
                                                    restart=dict(max_restarts=20, max_without_progress=0))
            wait_until(lambda: rig.client.get(job).restarts > 0, "it starts again")
            self.assertIn("STORAGE", rig.client.get(job).message)
            self.assertTrue(self.good(folder), "a good one is left")
            filler.unlink()
            end = rig.wait(job, "SUCCEEDED", timeout=120)
            self.assertEqual(end.progress.step, 1000)
            self.assertEqual(failure_name(end), "FAILURE_CLASS_UNSPECIFIED")
            self.assertEqual(list(rig.curve(job_id(job))), list(range(1, 1001)))
            rig.check_clean()


if __name__ == "__main__":
    namespaces.enter(namespaces.MOUNTS, ["mount", "--make-rprivate", "/"])
    unittest.main()
