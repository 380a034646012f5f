"""What docs/operations.md promises of a restored backup: the database is set back, while workers and ranks are where they are."""
import contextlib
import os
import shutil
import signal
import sqlite3
import unittest

from cluster import Cluster, spec, wait_until

LONG = 1500


def back_up(cluster):
    """As sqlite3's .backup does, while the coordinator writes."""
    path = cluster.folder / "backup.db"
    with contextlib.closing(sqlite3.connect(cluster.folder / "data/telar.db")) as store, \
            contextlib.closing(sqlite3.connect(path)) as copy:
        store.backup(copy)
    return path


def restore(cluster, backup):
    address, data = cluster.address, cluster.folder / "data"
    cluster.coordinator.kill()
    shutil.rmtree(data)
    data.mkdir()
    shutil.copy(backup, data / "telar.db")
    cluster.start_coordinator(address)


class RestoreTest(unittest.TestCase):
    def test_the_past_catches_up(self):
        with Cluster(workers={"a": 2}) as cluster:
            moved = cluster.submit(spec(cluster.text, steps=LONG, devices=1, checkpoint=dict(every_steps=100)))
            ended = cluster.submit(spec(cluster.text, steps=400, devices=1))
            cluster.wait_step(moved, 50)
            cluster.wait_step(ended, 50)
            backup = back_up(cluster)
            os.kill(cluster.rank_pids(moved)[0], signal.SIGKILL)
            wait_until(lambda: cluster.job(moved)["epoch"] == "2" and cluster.rank_pids(moved), "the job moves", 30)
            cluster.wait_state(ended, "SUCCEEDED")
            younger = cluster.submit(spec(cluster.text, steps=100 * LONG, devices=1))
            cluster.wait_step(younger, 20)

            restore(cluster, backup)
            cluster.wait_no_ranks(younger)
            cluster.telar("describe", younger, code=4)
            self.assertEqual(cluster.wait_state(ended, "SUCCEEDED")["progress"]["step"], "400")
            self.assertEqual(list(cluster.curve(ended)), list(range(1, 401)))
            self.assertEqual(cluster.wait_state(moved, "SUCCEEDED")["progress"]["step"], str(LONG))
            self.assertEqual(list(cluster.curve(moved)), list(range(1, LONG + 1)))


if __name__ == "__main__":
    unittest.main()
