"""A cluster with two coordinators on a real etcd; `coordinator` is the one that leads."""
import os
import pathlib
import signal
import socket
import subprocess
import time

from cluster import BIN, ROOT, Cluster, Daemon, wait_until

ETCD = pathlib.Path("/usr/bin/etcd")
MISSING = None if ETCD.exists() else "etcd is not installed (Debian package etcd-server)"
LEASE_SECONDS = 10  # Of a node. Longer than a frozen leader goes unnoticed by workers.


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start_etcd(folder, port):
    """The process. Its data and its log are in the folder."""
    peer = "http://127.0.0.1:0"
    with (folder / "etcd.log").open("ab") as log:
        return subprocess.Popen(
            [ETCD, "--name", "test", "--data-dir", folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{port}",
             "--advertise-client-urls", f"http://127.0.0.1:{port}", "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}", "--logger", "zap",
             "--log-level", "error"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


class StandbyCluster(Cluster):
    coordinator_security = ()

    def start_coordinator(self, listen=None):
        etcd, *ports = free_ports(3)
        self.coordinators = {}
        self.store = f"etcd://127.0.0.1:{etcd}"
        self.etcd = start_etcd(self.folder, etcd)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        for address in self.addresses:
            self.start_one(address)
        self.wait_leader()

    def start_one(self, address):
        number = self.addresses.index(address)
        [peer] = [other for other in self.addresses if other != address]
        daemon = Daemon(self.folder, f"coordinator-{number}", [
            BIN / "telar-coordinator", "--listen", address, "--http", "127.0.0.1:0", "--data", self.folder / "data",
            "--run-root", self.run_root, "--heartbeat-interval", "500ms", "--lease", f"{LEASE_SECONDS}s",
            "--store", self.store, "--peers", peer, *self.coordinator_security])
        daemon.start()
        self.coordinators[address] = daemon
        self.used_addresses |= {address, daemon.addresses["http"]}

    @property
    def address(self):
        return ",".join(self.addresses)

    def leads(self, address):
        daemon = self.coordinators.get(address)
        return daemon is not None and daemon.running() and \
            self.telar("list", "--timeout", "1s", address=address, code=None).returncode == 0

    def wait_leader(self, timeout=20):
        """The address of the leader, which `coordinator` is from now on."""
        found = wait_until(lambda: [one for one in self.addresses if self.leads(one)], "somebody leads", timeout)[0]
        self.coordinator = self.coordinators[found]
        return found

    def other(self, address):
        return next(one for one in self.addresses if one != address)

    def wait_answer(self, timeout=20):
        """Seconds until a client that knows all addresses is answered."""
        began = time.monotonic()
        wait_until(lambda: self.telar("list", "--timeout", "500ms", code=None).returncode == 0, "an answer", timeout, 0.02)
        return time.monotonic() - began

    def stop(self):
        wrong = []
        for daemon in self.coordinators.values():
            if daemon is not self.coordinator and daemon.running() and daemon.terminate() != 0:
                wrong.append(f"{daemon.name} did not end well on SIGTERM")
        wrong += super().stop()
        self.etcd.send_signal(signal.SIGTERM)
        self.etcd.wait(timeout=20)
        return wrong

    def destroy(self):
        for daemon in self.coordinators.values():
            if daemon.running():
                daemon.kill()
        if self.etcd.poll() is None:
            self.etcd.kill()
            self.etcd.wait(timeout=20)
        super().destroy()


class SecureStandbyCluster(StandbyCluster):
    """The same behind certificates; `environment` is what clients need of it."""

    def start_coordinator(self, listen=None):
        ca = self.ca = self.folder / "ca"
        subprocess.run([ROOT / "deploy/dev-ca.sh", ca, "a", "b"], check=True, stdout=subprocess.DEVNULL)
        os.environ.update(self.environment())
        self.coordinator_security = ("--tls-cert", ca / "coordinator.pem", "--tls-key", ca / "coordinator.key",
                                     "--tls-ca", ca / "ca.pem", "--tokens", ca / "tokens")
        super().start_coordinator(listen)

    def environment(self):
        return {"TELAR_TLS_CA": str(self.ca / "ca.pem"), "TELAR_TOKEN_FILE": str(self.ca / "admin.token")}

    def start_worker(self, name, devices=1, options=("--stop-ranks-on-exit",)):
        super().start_worker(name, devices, (*options, "--tls-cert", self.ca / f"nodes/{name}.pem", "--tls-key",
                                             self.ca / f"nodes/{name}.key", "--tls-ca", self.ca / "ca.pem"))

    def destroy(self):
        super().destroy()
        for name in self.environment():
            os.environ.pop(name, None)
