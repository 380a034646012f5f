"""A cluster behind certificates and tokens: who gets in, what goes on while certificates change, who is kept out."""
import json
import os
import pathlib
import subprocess
import unittest
import urllib.request

from cluster import BIN, LEASE_SECONDS, ROOT, Cluster, Daemon, spec, wait_until

VARIABLES = ("TELAR_TLS_CA", "TELAR_TOKEN_FILE", "TELAR_TOKEN", "TELAR_CONTEXTS", "TELAR_CONTEXT")


class SecureCluster(Cluster):
    """Certificates of a development CA, an admin's token; specs may name paths below the cluster's folder only."""

    def start_coordinator(self, listen="127.0.0.1:0"):
        self.ca = self.folder / "ca"
        self.revoked = self.folder / "revoked"
        if not self.ca.exists():
            self.issue()
            self.revoked.write_text("")
            os.environ.update(TELAR_TLS_CA=str(self.ca / "ca.pem"), TELAR_TOKEN_FILE=str(self.ca / "admin.token"))
        self.coordinator = Daemon(self.folder, "coordinator", [
            BIN / "telar-coordinator", "--listen", listen, "--http", "127.0.0.1:0", "--data", self.folder / "data",
            "--run-root", self.run_root, "--heartbeat-interval", "500ms", "--lease", f"{LEASE_SECONDS}s",
            "--tls-cert", self.ca / "coordinator.pem", "--tls-key", self.ca / "coordinator.key",
            "--tls-ca", self.ca / "ca.pem", "--tokens", self.ca / "tokens", "--revoked", self.revoked,
            "--allowed-root", self.folder])
        self.coordinator.start()
        self.used_addresses |= {self.coordinator.addresses["listen"], self.coordinator.addresses["http"]}

    def issue(self, folder=None, nodes=("a", "b", "c")):
        subprocess.run([ROOT / "deploy/dev-ca.sh", folder or self.ca, *nodes], check=True, stdout=subprocess.DEVNULL)

    def certificate(self, name, ca=None):
        ca = ca or self.ca
        return ("--tls-cert", ca / f"nodes/{name}.pem", "--tls-key", ca / f"nodes/{name}.key", "--tls-ca", ca / "ca.pem")

    def start_worker(self, name, devices=1, options=("--stop-ranks-on-exit",)):
        super().start_worker(name, devices, (*options, *self.certificate(name), "--allowed-root", self.folder))

    def worker_refused(self, *options):
        """What a worker says that does not even start."""
        result = subprocess.run([BIN / "telar-worker", "--coordinator", self.address, "--state", self.folder / "none",
                                 "--http", "127.0.0.1:0", "--device-kind", "cpu", *map(str, options)],
                                capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 2, f"exit {result.returncode}: {result.stderr}"
        return result.stderr

    def metric(self, name):
        text = urllib.request.urlopen(f"http://{self.coordinator.addresses['http']}/metrics", timeout=10).read().decode()
        return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(name)]

    def audit(self):
        return [json.loads(line) for line in (self.folder / "data/audit.jsonl").read_text().splitlines()]


class SecurityTest(unittest.TestCase):
    def setUp(self):
        before = {name: os.environ.get(name) for name in VARIABLES}
        os.environ["TELAR_CONTEXTS"] = "/nonexistent"

        def restore():
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
        self.addCleanup(restore)

    def registrations(self, cluster, name):
        return cluster.workers[name].log.read_text().count("registered as")

    def test_certificates_change_under_a_running_job(self):
        with SecureCluster() as cluster:
            job = cluster.submit(spec(cluster.text, steps=4000, checkpoint=dict(every_steps=100)))
            cluster.wait_step(job, 20)
            before = cluster.metric("telar_tls_certificate_expiry_timestamp_seconds")
            self.assertEqual(len(before), 1)
            old = (cluster.ca / "nodes/a.pem").read_bytes()
            cluster.issue()
            self.assertNotEqual((cluster.ca / "nodes/a.pem").read_bytes(), old)
            step = cluster.last_step(job)
            # A node that comes now is met with the new certificates; nobody who was there has to come again.
            cluster.start_worker("c", 2)
            cluster.wait_nodes(3)
            cluster.wait_step(job, step + 100)
            self.assertEqual([self.registrations(cluster, name) for name in "abc"], [1, 1, 1])
            # New ranks dial with the new files.
            os.kill(cluster.rank_pids(job)[1], 9)
            wait_until(lambda: int(cluster.job(job).get("epoch", 0)) == 2, "the job is placed again")
            cluster.wait_state(job, "RUNNING")
            self.assertEqual(cluster.job(job)["owner"], "admin")
            cluster.telar("cancel", job, "--wait")
            entries = [entry for entry in cluster.audit() if entry.get("user") == "admin"]
            self.assertEqual([(entry["method"].split("/")[1], entry["code"]) for entry in entries],
                             [("CreateJob", "OK"), ("CancelJob", "OK")])
            self.assertTrue(all(entry["resource"].endswith(job) for entry in entries))
            self.assertNotIn((cluster.ca / "admin.token").read_text(), json.dumps(cluster.audit()))

    def test_people_need_tokens_with_roles(self):
        with SecureCluster({"a": 1}) as cluster:
            content = cluster.write_spec(spec(cluster.text, steps=8, devices=1))
            token_file = os.environ.pop("TELAR_TOKEN_FILE")
            self.assertIn("a token is needed", cluster.telar("list", code=7).stderr)
            os.environ["TELAR_TOKEN"] = "telar_unknown"
            self.assertIn("does not know this token", cluster.telar("list", code=7).stderr)
            token, line = cluster.telar("token", "new", "--user", "ann", "--role", "default=viewer").stdout.splitlines()
            with (cluster.ca / "tokens").open("a") as tokens:
                tokens.write(line + "\n")
            os.environ["TELAR_TOKEN"] = token
            wait_until(lambda: cluster.telar("list", code=None).returncode == 0, "the new token is taken up")
            self.assertIn("needs the role submitter in project default", cluster.telar("submit", content, code=7).stderr)
            del os.environ["TELAR_TOKEN"]

            contexts = cluster.folder / "contexts.yaml"
            contexts.write_text(f"current: lab\ncontexts:\n  lab:\n    coordinator: {cluster.address}\n"
                                f"    tls_ca: {cluster.ca}/ca.pem\n    token_file: {token_file}\n")
            os.environ["TELAR_CONTEXTS"] = str(contexts)
            del os.environ["TELAR_TLS_CA"]
            job = cluster.telar("submit", content).stdout.strip()
            self.assertEqual(cluster.telar("watch", job).returncode, 0)
            os.chmod(token_file, 0o644)
            self.assertIn("can be read by others", cluster.telar("list", code=2).stderr)
            contexts.write_text("")
            self.assertIn("does it want TLS?", cluster.telar("list", "--timeout", "3s", code=5).stderr)

    def test_strangers_and_revoked_nodes_stay_outside(self):
        with SecureCluster({"a": 1, "b": 1}) as cluster:
            other = cluster.folder / "other"
            cluster.issue(other)
            self.assertIn("is of node a, not of --node z", cluster.worker_refused("--node", "z", *cluster.certificate("a")))
            mixed = list(cluster.certificate("a", other))
            mixed[-1] = cluster.ca / "ca.pem"
            self.assertIn("does not go with --tls-ca", cluster.worker_refused("--node", "a", *mixed))
            stranger = Daemon(cluster.folder, "stranger", [
                BIN / "telar-worker", "--coordinator", cluster.address, "--node", "c", "--state", cluster.state("c"),
                "--http", "127.0.0.1:0", "--device-kind", "cpu", "--spawner-idle", "0.5", *cluster.certificate("c", other)])
            cluster.workers["stranger"] = stranger
            stranger.start()
            wait_until(lambda: "is not signed by --tls-ca" in stranger.log.read_text(), "the stranger's log tells why")

            job = cluster.submit(spec(cluster.text, steps=100_000, devices=1))
            cluster.wait_state(job, "RUNNING")
            place = cluster.job(job)["placement"][0]["node"]
            ranks = list(cluster.rank_pids(job).values())
            cluster.revoked.write_text(place + "\n")
            wait_until(lambda: {node["name"]: node["state"] for node in cluster.json("nodes")["nodes"]}[place] == "LOST",
                       "the revoked node is lost")
            self.assertIn("revoked", cluster.workers[place].log.read_text())
            wait_until(lambda: not [pid for pid in ranks if pathlib.Path(f"/proc/{pid}").exists()],
                       "the revoked node stops its ranks")
            wait_until(lambda: int(cluster.job(job).get("epoch", 0)) == 2, "the job is placed again")
            self.assertNotEqual(cluster.wait_state(job, "RUNNING")["placement"][0]["node"], place)
            self.assertNotIn("c", [node["name"] for node in cluster.json("nodes")["nodes"]])
            cluster.revoked.write_text("")  # The worker is let in again, and ends what it has.
            wait_until(lambda: {node["name"]: node["state"] for node in cluster.json("nodes")["nodes"]}[place] == "READY",
                       "the node is back")
            cluster.telar("cancel", job, "--wait")

    def test_a_spec_reads_below_the_roots_only(self):
        with SecureCluster({"a": 1}) as cluster:
            wrong = spec("/etc/passwd", devices=1, checkpoint=dict(init_from="/root/x"), data=dict(eval=["/data/../etc/*"]))
            said = cluster.telar("submit", cluster.write_spec(wrong), code=2).stderr
            for field in ("data.train[0]", "data.eval[0]", "checkpoint.init_from"):
                self.assertIn(f"{field}: ", said)
            self.assertEqual(said.count("is not below an allowed root"), 3)
            link = cluster.folder / "link.txt"
            link.symlink_to("/etc/passwd")
            job = cluster.submit(spec(link, devices=1, restart=dict(max_restarts=0)))
            self.assertIn("is /etc/passwd, which is not below an allowed root", cluster.wait_state(job, "FAILED")["message"])


if __name__ == "__main__":
    unittest.main()
