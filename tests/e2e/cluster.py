"""A real cluster on this machine: telar-coordinator and telar-workers on free ports, everything in one temporary folder.

    with Cluster(workers={"a": 1, "b": 1}) as cluster:
        job = cluster.submit(spec(cluster.text, steps=50))
        cluster.wait_state(job, "SUCCEEDED")

Leaving the block stops all of it and fails when a process of the cluster is left, or a port still answers.
"""
import contextlib
import copy
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TELAR_BIN_DIR", ROOT / "build/release/bin"))
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
LEASE_SECONDS = 4

signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # So that what was started is stopped.

WORDS = ("the ship sailed over grey water and no man aboard could say how long a night might last while wind turned north "
         "until morning came with light upon their faces so every captain wrote in his book what had been seen there").split()


def write_text(path, size=240_000):
    """English-looking sentences, the same at every call."""
    draw, parts, length = random.Random(7), [], 0
    while length < size:
        parts.append(" ".join(draw.choices(WORDS, k=draw.randint(5, 14))).capitalize() + ".\n")
        length += len(parts[-1])
    path.write_text("".join(parts))
    return path


def merge(base, changes):
    for key, value in changes.items():
        base[key] = merge(base.get(key, {}), value) if isinstance(value, dict) else value
    return base


def spec(text, steps=40, devices=2, **changes):
    """A job of a few milliseconds a step; `changes` are laid over it."""
    base = dict(name="e2e", seed=5, deterministic=True,
                model=dict(architecture="LLAMA", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, tied_head=True),
                data=dict(train=[str(text)]), tokenizer=dict(kind="BYTE"), precision=dict(compute="FP32"),
                resources=dict(devices=devices, threads=1), batch={"global": 8, "sequence_length": 32},
                optimizer=dict(learning_rate=3e-3), schedule=dict(steps=steps, warmup_steps=5),
                eval=dict(sequences=8), restart=dict(backoff_seconds=1))
    return merge(base, copy.deepcopy(changes))


def wait_until(condition, what, timeout=60.0, pause=0.05):
    """The first truthy answer of `condition`."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what}")
        time.sleep(pause)


def read_lines(path):
    """The complete JSON lines of a file that may still grow; numbers with a point stay the text that they are."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line, parse_float=str) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def answers(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        return True
    except OSError:
        return False


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Daemon:
    def __init__(self, folder, name, arguments):
        self.name, self.arguments = name, arguments
        self.log, self.port_file = folder / f"{name}.log", folder / f"{name}.json"
        self.process, self.addresses = None, {}

    def start(self):
        self.port_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*map(str, self.arguments), "--port-file", self.port_file], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.process.poll() is not None or self.port_file.exists(), f"{self.name} starts")
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        self.addresses = json.loads(self.port_file.read_text())

    def running(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=20)

    def terminate(self, timeout=30):
        self.process.terminate()
        return self.process.wait(timeout=timeout)


class Cluster:
    def __init__(self, workers=None, run_root=None, queues=None, coordinator_options=()):
        """`queues`: what is in the coordinator's --queues file."""
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="telar-e2e-"))
        self.run_root = run_root or self.folder / "runs"
        self.text = write_text(self.folder / "text.txt")
        self.workers, self.used_addresses, self.specs = {}, set(), 0
        self.coordinator, self.coordinator_options = None, tuple(coordinator_options)
        if queues is not None:
            (self.folder / "queues.yaml").write_text(json.dumps({"queues": queues}))
            self.coordinator_options += ("--queues", self.folder / "queues.yaml")
        try:
            self.start_coordinator()
            for name, devices in ({"a": 1, "b": 1} if workers is None else workers).items():
                self.start_worker(name, devices)
            self.wait_nodes(len(self.workers))
        except BaseException:
            self.destroy()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.show_logs()
        left = self.stop()
        self.destroy()
        if kind is None and left:
            raise AssertionError("after the end of the cluster: " + "; ".join(left))

    def start_coordinator(self, listen="127.0.0.1:0"):
        """Again with the address of the one before to restart it there."""
        self.coordinator = Daemon(self.folder, "coordinator", [
            BIN / "telar-coordinator", "--listen", listen, "--http", "127.0.0.1:0", "--data", self.folder / "data",
            "--run-root", self.run_root, "--heartbeat-interval", "500ms", "--lease", f"{LEASE_SECONDS}s",
            *self.coordinator_options])
        self.coordinator.start()
        self.used_addresses |= {self.coordinator.addresses["listen"], self.coordinator.addresses["http"]}

    @property
    def address(self):
        return self.coordinator.addresses["listen"]

    def state(self, worker):
        return self.folder / f"worker-{worker}"

    def start_worker(self, name, devices=1, options=("--stop-ranks-on-exit",)):
        worker = Daemon(self.folder, f"worker-{name}.daemon", [
            BIN / "telar-worker", "--coordinator", self.address, "--node", name, "--state", self.state(name),
            "--http", "127.0.0.1:0", "--device-kind", "cpu", "--cpu-devices", devices, "--spawner-idle", "0.5",
            *(() if "--rank-program" in options else ("--rank-program", BIN / "telar-rank")), *options])
        worker.start()
        self.workers[name] = worker
        self.used_addresses.add(worker.addresses["http"])

    def processes(self, name="telar-"):
        """pid -> command line of this cluster's living processes."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or not alive(entry.name):
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if os.path.basename(command[0]).startswith(name) and str(self.folder) in " ".join(command):
                found[int(entry.name)] = " ".join(command)
        return found

    def rank_pids(self, job):
        """rank -> pid of the living processes of a job."""
        found = {}
        for pid, command in {**self.processes("telar-rank"), **self.processes("fake_rank")}.items():
            if f"/{job}/" in command and " --plan " in command:
                found[int(command.partition(f"/{job}/")[2].split("/")[1])] = pid
        return found

    def kill_node(self, name):
        """What the loss of a machine does: daemon, spawner and ranks are gone at once."""
        self.workers[name].process.send_signal(signal.SIGSTOP)
        for pid, command in self.processes().items():
            if str(self.state(name)) in command:
                os.kill(pid, signal.SIGKILL)
        self.workers[name].process.wait(timeout=20)

    def telar(self, *arguments, code=0, text=None, address=None, timeout=120):
        """The finished command; any exit code but `code` is a failure (None takes each)."""
        command = [BIN / "telar", "--coordinator", address or self.address, *map(str, arguments)]
        result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
        if code is not None and result.returncode != code:
            raise AssertionError(f"telar {' '.join(map(str, arguments))}: exit {result.returncode}, wanted {code}\n"
                                 f"{result.stdout}{result.stderr}")
        return result

    @contextlib.contextmanager
    def spawn(self, *arguments):
        """The running command."""
        process = subprocess.Popen([BIN / "telar", "--coordinator", self.address, *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def json(self, *arguments):
        return json.loads(self.telar(*arguments, "-o", "json").stdout)

    def write_spec(self, content):
        self.specs += 1
        path = self.folder / f"spec-{self.specs}.json"
        path.write_text(json.dumps(content, indent=1))
        return path

    def submit(self, content, *options):
        return self.telar("submit", self.write_spec(content), *options).stdout.strip()

    def job(self, job):
        return self.json("describe", job)

    def jobs(self):
        return self.json("list").get("jobs", [])

    def wait_nodes(self, count):
        def ready():
            answer = self.telar("nodes", "-o", "json", code=None)  # A coordinator with an etcd may not lead yet.
            nodes = json.loads(answer.stdout).get("nodes", []) if answer.returncode == 0 else []
            return sum(node["state"] == "READY" for node in nodes) == count
        wait_until(ready, f"{count} nodes are READY")

    def wait_state(self, job, *states, timeout=90):
        """The job once it is in one of `states`; ending in another state is a failure at once."""
        last = {}

        def reached():
            last.update(self.job(job))
            if last["state"] not in states and last["state"] in TERMINAL:
                raise AssertionError(f"job {job} is {last['state']}, wanted {states}: {last.get('message')}")
            return last["state"] in states
        wait_until(reached, lambda: f"{states}, but {last.get('state')}: {last.get('message')}", timeout, 0.1)
        return self.job(job)

    def run_dir(self, job):
        return self.run_root / job

    def curve(self, job):
        """step -> loss as written, of metrics.jsonl; a step that stands there twice is a failure."""
        steps = [line for line in read_lines(self.run_dir(job) / "metrics.jsonl") if "loss" in line and "grad_norm" in line]
        numbers = [int(line["step"]) for line in steps]
        assert numbers == sorted(set(numbers)), f"metrics.jsonl: steps {numbers}"
        return {int(line["step"]): line["loss"] for line in steps}

    def last_step(self, job):
        return max(self.curve(job), default=0)

    def wait_step(self, job, step, timeout=90):
        looked = time.monotonic()

        def reached():
            nonlocal looked
            if self.last_step(job) >= step:
                return True
            if self.coordinator.running() and time.monotonic() > looked + 2:
                looked = time.monotonic()
                now = self.job(job)
                assert now["state"] not in TERMINAL, f"{job} is {now['state']}, before step {step}: {now.get('message')}"
            return False
        wait_until(reached, lambda: f"step {step} of {job}, but {self.last_step(job)}", timeout, 0.01)

    def wait_no_ranks(self, job, timeout=20):
        wait_until(lambda: not self.rank_pids(job), f"no rank of {job} is left", timeout)

    def show_logs(self):
        for log in sorted(self.folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")

    def stop(self):
        """Ends everything in the order of a shutdown; says what did not go well."""
        wrong = []
        for daemon in [*self.workers.values(), self.coordinator]:
            if daemon and daemon.running():
                try:
                    code = daemon.terminate()
                    if code != 0:
                        wrong.append(f"{daemon.name} ended with {code} on SIGTERM")
                except subprocess.TimeoutExpired:
                    wrong.append(f"{daemon.name} did not end on SIGTERM")
        try:
            wait_until(lambda: not self.processes(), "", timeout=5)
        except AssertionError:
            wrong += [f"left running: {pid} {command}" for pid, command in self.processes().items()]
        wrong += [f"{address} still answers" for address in sorted(self.used_addresses) if answers(address)]
        return wrong

    def destroy(self):
        for daemon in [*self.workers.values(), self.coordinator]:
            if daemon and daemon.running():
                daemon.kill()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
