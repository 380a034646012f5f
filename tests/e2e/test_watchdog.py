"""What the daemons tell systemd: readiness, the end, and a sign of life for each round of their loop and for nothing else."""
import os
import socket
import threading
import time
import unittest

from cluster import Cluster, spec, wait_until

STALL = 3.0  # Seconds that the loop is held up; both loops come round every half second.


class Listener:
    """The socket at which systemd would listen: [(when, "READY=1"), ...]."""

    def __init__(self, folder):
        self.path = folder / "notify"
        self.heard = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text = self.socket.recv(4096).decode()
            self.heard += [(time.monotonic(), line) for line in text.splitlines()]

    def said(self, word, since=0.0):
        return [when for when, line in self.heard if line == word and when >= since]


class WatchdogTest(unittest.TestCase):
    def listen_to(self, cluster, fault, start):
        """Starts a daemon of `cluster` whose loop stands for a while at the point `fault`: what it says, and a file that is
        there once it stands."""
        folder = cluster.folder / "notify"
        folder.mkdir()
        listener = Listener(folder)
        changes = {"NOTIFY_SOCKET": str(listener.path), "TELAR_FAULT": f"{fault}:delay{STALL * 1000:.0f}",
                   "TELAR_FAULT_DIR": str(folder)}
        os.environ.update(changes)
        try:
            start()
        finally:
            for name in changes:
                del os.environ[name]
        wait_until(lambda: listener.said("READY=1"), "it is ready")
        wait_until(lambda: len(listener.said("WATCHDOG=1")) > 2, "it lives", timeout=5)
        self.assertFalse((folder / fault).exists())
        return listener, folder / fault

    def check_silence(self, listener, struck):
        """Signs of life before and after, none while the loop stands."""
        wait_until(struck.exists, "the loop is held up")
        stuck = time.monotonic()
        wait_until(lambda: listener.said("WATCHDOG=1", stuck + 0.5), "the loop goes on", timeout=STALL + 20)
        during = [when - stuck for when in listener.said("WATCHDOG=1", stuck + 0.5)]
        self.assertGreater(during[0], STALL - 0.5)
        wait_until(lambda: len(listener.said("WATCHDOG=1", stuck + 0.5)) > 4, "it comes round again and again", timeout=5)

    def check_end(self, listener, daemon):
        self.assertFalse(listener.said("STOPPING=1"))
        self.assertEqual(daemon.terminate(), 0)
        wait_until(lambda: listener.said("STOPPING=1"), "it says that it stops")

    def test_coordinator(self):
        with Cluster(workers={}) as cluster:
            cluster.coordinator.terminate()
            listener, struck = self.listen_to(cluster, "coordinator.store.written", cluster.start_coordinator)
            job = cluster.write_spec(spec(cluster.text, resources=dict(wait_for_capacity=True)))
            with cluster.spawn("submit", job):  # The store is slow.
                self.check_silence(listener, struck)
            self.check_end(listener, cluster.coordinator)

    def test_worker(self):
        with Cluster(workers={}) as cluster:
            listener, struck = self.listen_to(cluster, "plan.json.begin", lambda: cluster.start_worker("a"))
            job = cluster.submit(spec(cluster.text, steps=20, devices=1))  # The disk is slow.
            self.check_silence(listener, struck)
            cluster.wait_state(job, "SUCCEEDED")
            self.check_end(listener, cluster.workers["a"])


if __name__ == "__main__":
    unittest.main()
