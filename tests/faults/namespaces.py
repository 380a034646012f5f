"""Namespaces of a test program's own: what it does to its network or its mounts, nobody else sees. As root only."""
import ctypes
import os
import subprocess
import unittest

MOUNTS, NETWORK = 0x00020000, 0x40000000  # CLONE_NEWNS, CLONE_NEWNET
problem = "namespaces.enter() was not called"


def enter(kind, *commands):
    """At the start of a program: threads that there are would stay where they are. Then come `commands`, each of which has
    to go well."""
    global problem
    problem = None
    if ctypes.CDLL(None, use_errno=True).unshare(kind) != 0:
        problem = f"no namespace of our own: {os.strerror(ctypes.get_errno())}"
        return
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            problem = str(error)
            return
        if done.returncode != 0:
            problem = f"{' '.join(command)}: {done.stderr.strip()}"
            return


class OwnNamespaces(unittest.TestCase):
    """Skipped, with the reason, where enter() could not."""

    def setUp(self):
        if problem:
            self.skipTest(problem)
