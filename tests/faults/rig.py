"""A cluster to be broken: tests/e2e/cluster.py with fault points, a network that fails, a client whose every call is kept,
and what must be true after whatever happened.

TELAR_TIME_SCALE multiplies every interval of the daemons (1: heartbeat 2 s, lease 10 s, stop grace 15 s). Default: 0.3.
"""
import atexit
import contextlib
import importlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import grpc  # noqa: E402
from google.protobuf import json_format  # noqa: E402

from cluster import BIN, ROOT, TERMINAL, Cluster, Daemon, alive, spec, wait_until  # noqa: E402
from history import Call, check_history  # noqa: E402
from proxy import Proxy  # noqa: E402

SCALE = float(os.environ.get("TELAR_TIME_SCALE", "0.3"))
HEARTBEAT, LEASE, GRACE = 2 * SCALE, 10 * SCALE, 15 * SCALE
PATIENCE = 60.0  # For what takes no interval of ours: a busy machine is no failure.


def load_messages():
    """The messages of the contract, made by protoc."""
    folder = tempfile.TemporaryDirectory(prefix="telar-protos-")
    atexit.register(folder.cleanup)
    protos = sorted((ROOT / "proto/telar/v1").glob("*.proto"))
    subprocess.run(["protoc", "-I", ROOT / "proto", "--python_out", folder.name, *protos], check=True)
    sys.path.insert(0, folder.name)
    return importlib.import_module("telar.v1.jobs_pb2")


jobs_pb2 = load_messages()


def job_id(name):
    return name.rpartition("/")[2]


class FaultyDaemon(Daemon):
    """A daemon with an environment of its own."""
    environment = None

    def start(self):
        before = dict(os.environ)
        os.environ.update(self.environment or {})
        try:
            super().start()
        finally:
            os.environ.clear()
            os.environ.update(before)


class Client:
    """Calls the coordinator as a program would, and keeps what it asked and heard. Any thread."""

    def __init__(self, address, history, lock):
        self.channel = grpc.insecure_channel(address, options=[("grpc.initial_reconnect_backoff_ms", 50),
                                                               ("grpc.max_reconnect_backoff_ms", 200)])
        self.history, self.lock = history, lock

    def rpc(self, method, request, answer, timeout=5.0):
        stub = self.channel.unary_unary("/telar.v1." + method, request_serializer=type(request).SerializeToString,
                                        response_deserializer=answer.FromString)
        return stub(request, timeout=timeout)

    def call(self, kind, key, method, request, answer):
        """One call, recorded; None where it failed. `key` is the request_id or the job's name."""
        start = time.monotonic()
        result, code, detail = None, None, ""
        try:
            result = self.rpc("Jobs/" + method, request, answer)
        except grpc.RpcError as error:
            code, detail = error.code().name, error.details()
        with self.lock:
            self.history.append(Call(kind, key, start, time.monotonic(), result, code, detail))
        return result

    def submit_once(self, content, request_id):
        request = jobs_pb2.CreateJobRequest(request_id=request_id)
        json_format.ParseDict(content, request.spec)
        return self.call("submit", request_id, "CreateJob", request, jobs_pb2.Job)

    def until_answered(self, call, timeout=PATIENCE):
        def answer():
            result = call()
            if result is None and self.history[-1].code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND"):
                raise AssertionError(self.history[-1].detail)
            return result
        return wait_until(answer, lambda: f"an answer: {self.history[-1].code}", timeout)

    def submit(self, content, request_id=None):
        request_id = request_id or str(uuid.uuid4())
        return self.until_answered(lambda: self.submit_once(content, request_id)).name

    def cancel_once(self, name, request_id):
        return self.call("cancel", name, "CancelJob", jobs_pb2.CancelJobRequest(name=name, request_id=request_id),
                         jobs_pb2.Job)

    def cancel(self, name):
        request_id = str(uuid.uuid4())
        return self.until_answered(lambda: self.cancel_once(name, request_id))

    def get(self, name):
        return self.call("get", name, "GetJob", jobs_pb2.GetJobRequest(name=name), jobs_pb2.Job)

    def list(self):
        return self.call("list", "", "ListJobs", jobs_pb2.ListJobsRequest(page_size=1000), jobs_pb2.ListJobsResponse)

    def events(self, name):
        """The whole history of a job that is over."""
        stub = self.channel.unary_stream("/telar.v1.Jobs/WatchJob",
                                         request_serializer=jobs_pb2.WatchJobRequest.SerializeToString,
                                         response_deserializer=jobs_pb2.WatchJobResponse.FromString)
        return [one.event for one in stub(jobs_pb2.WatchJobRequest(name=name), timeout=PATIENCE) if one.HasField("event")]


def state_name(job):
    return jobs_pb2.Job.State.Name(job.state)


def failure_name(job):
    return job.DESCRIPTOR.fields_by_name["failure_class"].enum_type.values_by_number[job.failure_class].name


class Rig(Cluster):
    """`net`: a network.Net in which the coordinator is the machine "c", and each worker one of its name. `clocks`: every
    daemon has a wall clock of its own, for set_clock()."""

    def __init__(self, workers=None, rank_program="fake_rank", proxied=(), net=None, clocks=False, coordinator_options=()):
        self.rank_program, self.proxied, self.proxies = BIN / rank_program, set(proxied), {}
        self.net, self.clocks = net, pathlib.Path(tempfile.mkdtemp(prefix="telar-clocks-")) if clocks else None
        self.history, self.lock, self.figures = [], threading.Lock(), {}
        self.strikes = pathlib.Path(tempfile.mkdtemp(prefix="telar-strikes-"))
        self.client = None
        super().__init__(workers, coordinator_options=coordinator_options)

    def plan(self, fault):
        """The environment of a daemon in which `fault` ("point:action:n") strikes once."""
        return {"TELAR_FAULT": fault, "TELAR_FAULT_DIR": str(self.strikes)} if fault else {}

    def struck(self, fault):
        return (self.strikes / fault.split(":")[0]).exists()

    def forget_strikes(self):
        for mark in self.strikes.iterdir():
            mark.unlink()

    def inside(self, name):
        """What a command begins with that is to run on that machine."""
        return self.net.inside(name) if self.net else []

    def environment(self, name, fault):
        if not self.clocks:
            return self.plan(fault)
        if not (self.clocks / name).exists():
            self.set_clock(name, 0)
        return {**self.plan(fault), "LD_PRELOAD": str(BIN / "libfake_wall.so"), "TELAR_FAKE_WALL": str(self.clocks / name)}

    def set_clock(self, name, seconds):
        """The wall clock of a daemon, its spawner and its ranks is from now on so far ahead of this machine's."""
        with (self.clocks / name).open("r+b" if (self.clocks / name).exists() else "w+b") as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))

    def start_coordinator(self, listen=None, fault=""):
        where = ["--listen", f"{self.net.address('c')}:7070", "--insecure-listen"] if self.net else [
            "--listen", listen or "127.0.0.1:0"]
        self.coordinator = FaultyDaemon(self.folder, "coordinator", [
            *self.inside("c"), BIN / "telar-coordinator", *where, "--http", "127.0.0.1:0", "--data", self.folder / "data",
            "--run-root", self.run_root, "--heartbeat-interval", f"{HEARTBEAT * 1000:.0f}ms",
            "--lease", f"{LEASE * 1000:.0f}ms", "--stop-grace", f"{GRACE * 1000:.0f}ms",
            *self.coordinator_options])
        self.coordinator.environment = self.environment("coordinator", fault)
        self.coordinator.start()
        self.used_addresses |= {self.coordinator.addresses["listen"], self.coordinator.addresses["http"]}
        if self.client is None:
            self.client = self.new_client()

    def new_client(self):
        return Client(self.address, self.history, self.lock)

    def restart_coordinator(self, fault=""):
        address = self.address
        if self.coordinator.running():
            self.coordinator.kill()
        self.start_coordinator(address, fault)

    def start_worker(self, name, devices=1, options=("--stop-ranks-on-exit",), fault=""):
        if name in self.proxied and name not in self.proxies:
            self.proxies[name] = Proxy(self.address)
        where = ["--listen-host", self.net.address(name)] if self.net else []
        worker = FaultyDaemon(self.folder, f"worker-{name}.daemon", [
            *self.inside(name), BIN / "telar-worker", *where, "--coordinator", self.proxies[name].address if name in self.proxies else self.address,
            "--node", name, "--state", self.state(name), "--http", "127.0.0.1:0", "--rank-program", self.rank_program,
            "--device-kind", "cpu", "--cpu-devices", devices, "--spawner-idle", "0.5", "--stop-grace", f"{GRACE:g}",
            *options])
        worker.environment = self.environment(name, fault)
        worker.start()
        worker.devices = devices
        self.workers[name] = worker
        self.used_addresses.add(worker.addresses["http"])

    def restart_worker(self, name, fault=""):
        worker = self.workers[name]
        if worker.running():
            worker.kill()
        if fault:  # An old spawner would not know of it.
            wait_until(lambda: not any(str(self.state(name)) in command for command in self.processes().values()),
                       f"the spawner of {name} is gone")
        self.start_worker(name, worker.devices, fault=fault)

    def fake(self, words, devices=1, **changes):
        """A job whose ranks do what `words` say: tests/fakes/fake_rank.cc."""
        batch = {"global": 4 * devices, "sequence_length": 32}
        return spec(self.text, devices=devices, sample=dict(prompt=words, tokens=0), batch=batch, **changes)

    def wait(self, name, *states, timeout=PATIENCE):
        last = {}

        def reached():
            job = self.client.get(name)
            if job is None:
                return None
            last["state"], last["message"] = state_name(job), job.message
            if last["state"] in TERMINAL and last["state"] not in states:
                raise AssertionError(f"{name} is {last['state']}, wanted {states}: {job.message}")
            return job if last["state"] in states else None
        return wait_until(reached, lambda: f"{name} in {states}, but {last}", timeout)

    def wait_epoch(self, name, epoch):
        """The job once this epoch of it runs."""
        def reached():
            job = self.client.get(name)
            return job if job is not None and job.epoch == epoch and state_name(job) == "RUNNING" else None
        return wait_until(reached, lambda: f"epoch {epoch} of {name} runs, but: {self.client.get(name)}", pause=0.02)

    def run(self, content):
        """A job of it that runs, and its processes."""
        job = self.client.submit(content)
        self.wait(job, "RUNNING")
        return job, self.rank_processes()

    def check_untouched(self, job, processes):
        """It runs in these, and never ran in others. The job."""
        view = self.wait(job, "RUNNING")
        assert (view.epoch, view.restarts, view.node_restarts) == (1, 0, 0), f"restarted: {view}"
        assert self.rank_processes() == processes, f"{self.rank_processes()} run, not {processes}"
        return view

    def nodes(self):
        answer = self.client.rpc("Jobs/ListNodes", jobs_pb2.ListNodesRequest(), jobs_pb2.ListNodesResponse)
        return {node.name: node for node in answer.nodes}

    def wait_node(self, name, state, timeout=PATIENCE):
        def reached():
            with contextlib.suppress(grpc.RpcError, KeyError):
                return jobs_pb2.Node.State.Name(self.nodes()[name].state) == state
            return False
        wait_until(reached, f"node {name} is {state}", timeout)

    def processes(self, name=("telar-", "fake_rank")):
        return super().processes(name)

    def rank_processes(self, job=""):
        """pid -> rank directory of every process that carries our marker, whatever it calls itself."""
        found, marker = {}, f"TELAR_RANK_DIR={self.folder}".encode()
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or not alive(entry.name):
                continue
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for variable in variables:
                if variable.startswith(marker) and job in variable.decode():
                    found[int(entry.name)] = variable.decode().partition("=")[2]
        return found

    def rank_directories(self):
        """What the workers still have."""
        return [str(path) for state in self.folder.glob("worker-*/ranks") for path in state.glob("*/*/*")]

    def figure(self, name, value, unit="s"):
        """Of several of one name the largest counts."""
        self.figures[name] = max((value, unit), self.figures.get(name, (0, unit)))

    def end(self, *jobs, lossy=False):
        """Cancels them, and looks whether all is clean."""
        for job in jobs:
            self.client.cancel(job)
            self.wait(job, "CANCELLED")
        self.check_clean(lossy)

    def check_clean(self, lossy=False):
        """After the last job: nothing is left anywhere, and everything that was said is there. `lossy`: any rank may have
        been given up, and the end of its log with it."""
        names = [job.name for job in self.client.until_answered(self.client.list).jobs]
        wait_until(lambda: not self.rank_processes(), lambda: f"processes are left: {self.rank_processes()}")
        wait_until(lambda: not self.rank_directories(), lambda: f"workers still have {self.rank_directories()}")
        held = {f"{node.name}/{device.device.index}": device.job
                for node in self.nodes().values() for device in node.devices if device.job}
        assert not held, f"devices are held: {held}"
        for record in self.folder.glob("worker-*/finished/*/pid.json"):
            cgroup = json.loads(record.read_text()).get("cgroup", "")
            assert not cgroup or not os.path.exists(cgroup), f"{record}: {cgroup} is left"
        events = {name: self.client.events(name) for name in names}
        self.check_logs(check_history(self.history, events, jobs_pb2), lossy)

    def check_logs(self, lost, lossy):
        """Byte for byte what the rank wrote; of a rank that was given up, the beginning."""
        for directory in self.folder.glob("worker-*/finished/*.*.*"):
            job, epoch, rank = directory.name.split(".")
            written = (directory / "log").read_bytes() if (directory / "log").exists() else b""
            path = self.folder / "data/logs" / job / f"{rank}.{epoch}.log"
            kept = path.read_bytes() if path.exists() else b""
            whole = kept == written or ((lossy or (job, int(epoch)) in lost) and written.startswith(kept))
            assert whole, f"log of {directory.name}: {len(kept)} of {len(written)} bytes"

    def stop(self):
        for proxy in self.proxies.values():
            proxy.set("pass")
        self.used_addresses.clear()  # Another test's cluster beside this one may have them by now.
        left = super().stop()
        for proxy in self.proxies.values():
            proxy.close()
        self.forget_strikes()
        self.strikes.rmdir()
        if self.clocks:
            shutil.rmtree(self.clocks)
        for name, (value, unit) in self.figures.items():
            print(f"FIGURE {name}: {value:.2f} {unit} at time scale {SCALE:g}", flush=True)
        return left
