"""telar watch on a real terminal (a pty), and the curves that a run leaves behind."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import types
import unittest

import tfevents
from cluster import BIN, ROOT, Cluster, read_lines, spec, wait_until

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command, columns=100, lines=40, **environment):
        keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LC_ALL", "LC_CTYPE")}
        environment = {**keep, "TERM": "xterm", "LANG": "C.UTF-8", **environment}
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.execve(command[0], [str(part) for part in command], environment)
        self.text, self.code = "", None
        self.before = termios.tcgetattr(self.master)
        self.resize(columns, lines)

    def resize(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys)

    def pump(self):
        """Takes what was written; True once the program is over and all of it is here."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # Nobody has the other end any more.
                data = b""
            if not data:
                if self.code is None:
                    self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return True
            self.text += data.decode(errors="surrogateescape")
        return False

    def wait(self, condition, what):
        def met():
            over = self.pump()
            return condition(self) or (over and self.fail(f"it is over with {self.code}, before {what}"))
        wait_until(met, lambda: f"{what}: {self.page()!r}", 30)

    def fail(self, what):
        raise AssertionError(f"{what}: {self.text!r}")

    def end(self):
        wait_until(self.pump, lambda: f"it ends: {self.text[-500:]!r}", 30)
        return self.code

    def page(self):
        """The lines of the last whole page, without colours."""
        pages = self.text.split("\x1b[H")[1:]
        whole = [one.split("\x1b[J")[0] for one in pages if "\x1b[J" in one]
        return [line.rstrip("\r") for line in re.sub(r"\x1b\[[0-9]*[mK]", "", whole[-1]).split("\n")] if whole else []

    def shows(self, *parts):
        return all(part in "\n".join(self.page()) for part in parts)


class ViewTest(unittest.TestCase):
    def check_restored(self, terminal):
        """All that was changed was taken back, once and in the end."""
        self.assertEqual((terminal.text.count(ENTER), terminal.text.count(LEAVE)), (1, 1), terminal.text[-500:])
        rest = terminal.text[terminal.text.index(LEAVE) + len(LEAVE):]
        self.assertNotIn("\x1b[?", rest)
        self.assertEqual(termios.tcgetattr(terminal.master), terminal.before)
        return rest

    def watch(self, cluster, *arguments, **options):
        return Terminal([BIN / "telar", "--coordinator", cluster.address, "watch", *arguments], **options)

    def test_a_page_that_comes_and_goes(self):
        with Cluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=100_000, eval=dict(every_steps=50), trace=dict(account_every=10)))
            cluster.wait_step(job, 60)
            view = self.watch(cluster, job)
            view.wait(lambda one: one.shows(f"{job}  e2e", "RUNNING", "2 x cpu on 2 nodes", "smoothed", "held out", "tokens/s", "waits",
                                            "STARTING -> RUNNING"), "the page")
            self.assertTrue(any("\u2800" < letter <= "\u28ff" for letter in "".join(view.page())), view.page())
            view.wait(lambda one: one.shows("memory", "forecast") and re.search(r"\n1 +RUNNING +\d+ ", "\n".join(one.page())), "ranks and memory")
            self.assertIn("\x1b[32m", view.text)
            view.resize(60, 20)
            view.wait(lambda one: max(map(len, one.page())) <= 60 and len(one.page()) <= 20, "a page of 60 columns")
            view.type(b"\x03")
            self.assertEqual(view.end(), 0)
            self.assertTrue(self.check_restored(view).endswith(f"detached; job goes on: telar watch {job}\r\n"), view.text[-300:])
            self.check_other_terminals(cluster, job)
            self.check_signal(cluster, job)
            self.check_all(cluster, job)
            self.check_end(cluster, job)

    def check_other_terminals(self, cluster, job):
        plain = self.watch(cluster, job, LANG="C", NO_COLOR="1")
        plain.wait(lambda one: one.shows("RUNNING", "tokens/s"), "a page without colours")
        plain.type(b"\x03")
        self.assertEqual(plain.end(), 0)
        self.assertTrue(plain.text.isascii(), plain.text[-500:])
        self.assertNotIn("\x1b[3", plain.text)
        dumb = self.watch(cluster, job, "--wait-timeout", "500ms", TERM="dumb")
        self.assertEqual(dumb.end(), 6)
        self.assertNotIn("\x1b", dumb.text)
        self.assertIn("STARTING -> RUNNING", dumb.text)

    def check_signal(self, cluster, job):
        view = self.watch(cluster, job)
        view.wait(lambda one: one.shows("RUNNING"), "the page")
        os.kill(view.pid, signal.SIGTERM)
        self.assertEqual(view.end(), 128 + signal.SIGTERM)
        self.check_restored(view)

    def check_all(self, cluster, job):
        view = self.watch(cluster)
        view.wait(lambda one: one.shows("1 live job, 1 RUNNING", job), "the table")
        waiting = cluster.submit(spec(cluster.text, steps=100))
        view.wait(lambda one: one.shows("2 live jobs", waiting, "QUEUED"), "the second job")
        cluster.telar("cancel", waiting)
        view.wait(lambda one: one.shows("1 live job,"), "one job again")
        view.type(b"\x03")
        self.assertEqual(view.end(), 0)
        self.check_restored(view)
        self.assertEqual(len(cluster.telar("watch").stdout.splitlines()), 2)

    def check_end(self, cluster, job):
        view = self.watch(cluster, job)
        view.wait(lambda one: one.shows("RUNNING"), "the page")
        cluster.telar("cancel", job)
        self.assertEqual(view.end(), 3)
        rest = self.check_restored(view)
        self.assertIn("CANCELLED", rest)
        self.assertIn(f"Job {job} CANCELLED", rest)


class CurvesTest(unittest.TestCase):
    """What TensorBoard reads, over a restart; and what docs/metrics.md says to do with metrics.jsonl."""

    def test_curves(self):
        with Cluster(workers={"a": 1}) as cluster:
            job = cluster.submit(spec(cluster.text, steps=400, devices=1, checkpoint=dict(every_steps=40), eval=dict(every_steps=50),
                                      output=dict(tensorboard=True), trace=dict(account_every=10)))
            pid = wait_until(lambda: cluster.rank_pids(job).get(0), "the rank")
            wait_until(lambda: self.stop_between_saves(cluster.run_dir(job), pid), "a third save in the curves")
            os.kill(pid, signal.SIGKILL)
            done = cluster.wait_state(job, "SUCCEEDED")
            self.assertEqual(done["restarts"], 1)
            self.check_events(cluster, job)
            self.check_tensorboard(cluster, job)
            self.check_documented_loop(cluster, job)

    def stop_between_saves(self, folder, pid):
        """A rank that dies between a save and its line in the curves does neither again, so it is stopped to look whether it is there."""
        os.kill(pid, signal.SIGSTOP)
        newest = max((int(path.name[5:]) for path in (folder / "ckpt").glob("step-*")), default=0)
        if newest >= 120 and newest in tfevents.read(folder)["checkpoint/save_seconds"]:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    def check_events(self, cluster, job):
        folder = cluster.run_dir(job)
        self.assertEqual(len(list(folder.glob("events.out.tfevents.*"))), 2)
        curves = tfevents.read(folder)
        lines = read_lines(folder / "metrics.jsonl")
        single = lambda text: struct.unpack("<f", struct.pack("<f", float(text)))[0]
        for tag, key in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"), ("train/learning_rate", "learning_rate"),
                         ("throughput/tokens_per_second", "tokens_per_second"), ("eval/loss", "eval_loss")):
            wanted = {int(line["step"]): single(line[key]) for line in lines if key in line}
            self.assertEqual(curves[tag], wanted, tag)
        self.assertEqual(list(curves["train/loss"]), list(range(1, 401)))
        self.assertEqual(sorted(curves["eval/loss"]), list(range(50, 401, 50)))
        self.assertEqual(sorted(curves["checkpoint/save_seconds"]), list(range(40, 401, 40)))
        for tag in ("memory/weights", "phases/device", "account/forward"):
            self.assertTrue(curves.get(tag), f"{tag} of {sorted(curves)}")
        first, second = ([tfevents.event(data) for data in tfevents.records(path.read_bytes())]
                         for path in sorted(folder.glob("events.out.tfevents.*")))
        self.assertEqual([event["step"] for event in first if event["start"]], [1])
        resumed = [event["step"] for event in second if event["start"]]
        self.assertGreaterEqual(max(event["step"] for event in first), max(resumed), "nothing was done again")

    def check_tensorboard(self, cluster, job):
        """The same by TensorBoard's own reader, by a Python that has it."""
        python = os.environ.get("TELAR_TENSORBOARD_PYTHON")
        if not python:
            print("TensorBoard's own reader: not asked; TELAR_TENSORBOARD_PYTHON names a Python that has the package")
            return
        program = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
one = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
one.Reload()
print(json.dumps({tag: {item.step: item.value for item in one.Scalars(tag)} for tag in one.Tags()["scalars"]}))
"""
        read = subprocess.run([python, "-c", program, cluster.run_dir(job)], capture_output=True, text=True, check=True, timeout=120)
        theirs = {tag: {int(step): value for step, value in steps.items()} for tag, steps in json.loads(read.stdout).items()}
        self.assertEqual(theirs, tfevents.read(cluster.run_dir(job)))
        print("TensorBoard's own reader: agrees")

    def check_documented_loop(self, cluster, job):
        """The lines of the page, with modules in the trackers' places that write down what they are told."""
        page = (ROOT / "docs/metrics.md").read_text()
        reading, mlflow_lines, wandb_lines = re.findall(r"```python\n(.*?)```", page, re.S)
        for tracker, lines in (("mlflow", mlflow_lines), ("wandb", wandb_lines)):
            with self.subTest(tracker):
                logged = self.run_documented(reading + lines, tracker, [str(cluster.run_dir(job)), job])
                self.assertEqual([step for step, _ in logged], list(range(1, 401)))
                self.assertEqual({step: values["loss"] for step, values in logged},
                                 {step: float(loss) for step, loss in cluster.curve(job).items()})
                self.assertEqual([step for step, values in logged if "eval_loss" in values], list(range(50, 401, 50)))
                self.assertTrue(any("account.forward" in values for _, values in logged))

    @staticmethod
    def run_documented(program, tracker, arguments):
        logged = []

        class Run:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            @staticmethod
            def log(values, step):
                logged.append((step, dict(values)))
        module = types.ModuleType(tracker)
        module.set_experiment = lambda name: None
        module.start_run = module.init = lambda **_: Run()
        module.log_metrics = Run.log
        kept, sys.argv = sys.argv, ["metrics.py", *arguments]
        sys.modules[tracker] = module
        try:
            exec(compile(program, "docs/metrics.md", "exec"), {"__name__": "__main__"})  # The page's own words.
        finally:
            sys.argv = kept
            del sys.modules[tracker]
        return logged


if __name__ == "__main__":
    unittest.main()
