"""Whatever is wrong is said in one line that names field or path, value and rule; nothing is left running or stored."""
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import unittest

from cluster import BIN, Cluster, answers, spec, wait_until


def shard(path, tokens, claimed=None):
    header = struct.pack("<256I", 20240520, 1, claimed or len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    return path


class SpecTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = Cluster()
        cls.cluster = cls.context.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)

    def tearDown(self):
        self.assertEqual(self.cluster.jobs(), [])
        self.assertEqual(self.cluster.processes("telar-rank"), {})
        self.assertFalse(self.cluster.run_root.exists() and any(self.cluster.run_root.iterdir()))

    def refused(self, path, *wanted, code=2, options=()):
        """Exactly the wanted lines, each a regular expression; {path} in it is the file."""
        for dry in ([], ["--dry-run"]):
            result = self.cluster.telar("submit", path, *options, *dry, code=code)
            self.assertEqual(result.stdout, "")
            lines = result.stderr.splitlines()
            self.assertEqual(len(lines), len(wanted), result.stderr)
            for pattern in wanted:
                pattern = "error: " + pattern.replace("{path}", re.escape(str(path)))
                self.assertTrue(any(re.fullmatch(pattern, line) for line in lines), f"{pattern}\n{result.stderr}")

    def refused_spec(self, *wanted, code=2, **changes):
        self.refused(self.cluster.write_spec(spec(self.cluster.text, **changes)), *wanted, code=code)

    def refused_text(self, text, *wanted):
        path = self.cluster.folder / "job.yaml"
        path.write_text(text)
        self.refused(path, *wanted)

    def test_files_that_are_no_spec(self):
        self.refused(pathlib.Path("/nowhere/job.yaml"), r"{path}: cannot be opened: No such file or directory")
        self.refused(self.cluster.folder, r"{path}: is a directory, want a file")
        self.refused_text("", r"{path}: is empty, want a job spec")
        self.refused_text("# nothing\n", r"{path}.*: is empty, want a job spec")
        self.refused_text("model: [\n", r"{path}:\d+:\d+: .*")
        self.refused_text("{\"model\": ", r"{path}.*")
        self.refused_text("\x00\x01\x02", r"{path}.*")

    def test_unknown_keys(self):
        self.refused_text("model:\n  layrs: 2\ndata:\n  trian: [x]\n",
                          r"{path}:2:3: model: unknown field 'layrs'; did you mean 'layers'\?",
                          r"{path}:4:3: data: unknown field 'trian'; did you mean 'train'\?")
        path = self.cluster.write_spec(spec(self.cluster.text))
        self.refused(path, r".*schedule.*'step'.*did you mean 'steps'\?", options=["--set", "schedule.step=5"])

    def test_values_of_the_wrong_kind(self):
        self.refused_text("model: {layers: many}\n", r"{path}:1:\d+: model\.layers: .*many.*")
        self.refused_text("model: {layers: -1}\n", r"{path}:1:\d+: model\.layers: .*-1.*")
        self.refused_text("model: {architecture: LLAMMA}\n", r"{path}:1:\d+: model\.architecture: .*LLAMMA.*llama.*")

    def test_model(self):
        self.refused_spec(r"{path}:\d+:\d+: model\.vocab: 100 is smaller than the byte tokenizer's 257", model=dict(vocab=100))
        self.refused_spec(r"{path}:\d+:\d+: model\.heads: 3 does not divide model\.hidden = 32",
                          model=dict(heads=3, kv_heads=3))
        self.refused_spec(r"{path}:\d+:\d+: model\.kv_heads: 3 does not divide model\.heads = 4", model=dict(kv_heads=3))
        self.refused_spec(r"{path}:\d+:\d+: model\.layers: 0 must be above 0", model=dict(layers=0))

    def test_batch_and_layout(self):
        self.refused_spec(r"{path}:\d+:\d+: batch\.global: 7 is not divisible by parallel\.data = 2", batch={"global": 7})
        self.refused_spec(r"{path}:\d+:\d+: batch\.micro: 3 does not divide .* = 4", batch=dict(micro=3))
        self.refused_spec(r"{path}:\d+:\d+: parallel\.tensor: 3 does not divide model\.heads = 4: 4 % 3 = 1; use 2",
                          r"{path}:\d+:\d+: parallel\.tensor: 3 neither divides model\.kv_heads = 2 nor is .*; use 2",
                          r"{path}:\d+:\d+: batch\.sequence_length: 32 is not divisible by parallel\.tensor = 3: .*; use 30",
                          devices=3, parallel=dict(tensor=3, data=1))
        self.refused_spec(r".*resources\.devices: 2 is not divisible by parallel\.tensor \* pipeline = 2 \* 2 = 4, .*; use 4",
                          parallel=dict(tensor=2, pipeline=2))
        self.refused_spec(r"{path}:\d+:\d+: parallel\.pipeline: .* = 2 \* 2 = 4 stages, but model\.layers = 2 .*",
                          parallel=dict(pipeline=2, virtual_stages=2))

    def test_a_tensor_group_wider_than_any_node(self):
        self.refused_spec(r".*parallel\.tensor: 2 ranks need one node, the largest has 1 device \(node a\); .*", code=7,
                          parallel=dict(tensor=2))

    def test_more_devices_than_exist(self):
        self.refused_spec(r".*resources\.devices: 4 CPU devices are wanted, the cluster has 2; .*", code=7, devices=4)
        self.refused_spec(r".*resources\.devices: 2 GPU devices are wanted, the cluster has 0; .*", code=7,
                          resources=dict(kind="GPU"))

    def test_all_at_once(self):
        self.refused_spec(r"{path}:\d+:\d+: name: 'Bad Name!' .*", r"{path}:\d+:\d+: model\.layers: 0 .*",
                          r"{path}:\d+:\d+: model\.vocab: 100 .*", r"{path}:\d+:\d+: batch\.global: 7 .*",
                          r"{path}:\d+:\d+: optimizer\.learning_rate: -1 .*", r"{path}:\d+:\d+: schedule\.warmup_steps: 1000 .*",
                          name="Bad Name!", model=dict(layers=0, vocab=100), batch={"global": 7},
                          optimizer=dict(learning_rate=-1), schedule=dict(warmup_steps=1000))


class AddressTest(unittest.TestCase):
    def test_wrong_coordinator_address(self):
        with Cluster(workers={"a": 1}) as cluster:
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                cases = [(f"127.0.0.1:{silent.getsockname()[1]}", 5), (cluster.coordinator.addresses["http"], 5), ("nonsense", 2),
                         ("127.0.0.1:99999", 2)]
                for address, code in cases:
                    for command in (["list"], ["submit", cluster.write_spec(spec(cluster.text))]):
                        result = cluster.telar(*command, "--timeout", "1s", address=address, code=code)
                        errors = [line for line in result.stderr.splitlines() if not line.endswith(", retrying")]
                        self.assertEqual(len(errors), 1, result.stderr)
                        self.assertRegex(errors[0], rf"^error: .*{re.escape(address)}")
            self.assertEqual(cluster.jobs(), [])

    def refused(self, cluster, code, words, program, *arguments):
        result = subprocess.run([BIN / program, *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, rf"^{program}: [^\n]*\n$")
        for word in words:
            self.assertIn(str(word), result.stderr)
        here = {pid for pid, command in cluster.processes().items() if "second" in command}
        wait_until(lambda: not here & cluster.processes().keys(), f"{program} leaves nothing behind", timeout=5)

    def test_port_and_folder_in_use(self):
        with Cluster(workers={"a": 1}) as cluster:
            second, http, any_port = cluster.folder / "second", cluster.coordinator.addresses["http"], "127.0.0.1:0"
            coordinator, worker = "telar-coordinator", "telar-worker"
            self.refused(cluster, 3, [cluster.address, "--listen", "in use"], coordinator, "--listen", cluster.address,
                         "--http", any_port, "--data", second)
            self.refused(cluster, 3, [http, "--http", "in use"], coordinator, "--listen", any_port, "--http", http, "--data", second)
            self.refused(cluster, 4, [cluster.folder / "data"], coordinator, "--listen", any_port, "--http", any_port,
                         "--data", cluster.folder / "data")
            self.refused(cluster, 4, [cluster.text], coordinator, "--listen", any_port, "--http", any_port, "--data", cluster.text)
            common = [worker, "--coordinator", cluster.address, "--node", "second", "--spawner-idle", "0.2"]
            self.refused(cluster, 3, [http, "--http", "in use"], *common, "--http", http, "--state", second)
            self.refused(cluster, 4, [cluster.state("a")], *common, "--state", cluster.state("a"))
            self.refused(cluster, 4, [cluster.text], *common, "--state", cluster.text)
            self.refused(cluster, 2, ["--cpu-devices", "0"], *common, "--state", second, "--cpu-devices", 0)
            self.refused(cluster, 2, ["--data"], coordinator, "--listen", any_port, "--http", any_port)
            self.assertEqual([node["name"] for node in cluster.json("nodes")["nodes"]], ["a"])
            self.assertTrue(answers(http))
            cluster.wait_state(cluster.submit(spec(cluster.text, steps=5, devices=1)), "SUCCEEDED")


class DataTest(unittest.TestCase):
    def failed(self, cluster, failure, words, **changes):
        job = cluster.submit(spec(cluster.text, **changes))
        self.assertIn("FAILED", cluster.telar("watch", job, code=1).stdout)
        done = cluster.job(job)
        self.assertEqual((done["state"], done.get("failure_class"), done.get("restarts", 0), done["epoch"]),
                         ("FAILED", failure, 0, "1"), done.get("message"))
        for word in words:
            self.assertIn(str(word), done["message"])
        self.assertNotIn("\n", done["message"])
        self.assertEqual(cluster.rank_pids(job), {})
        return done

    def test_text(self):
        with Cluster() as cluster:
            absent, empty, short = (cluster.folder / name for name in ("absent.txt", "empty.txt", "short.txt"))
            empty.write_text("")
            short.write_text("short")
            for path, words in ((absent, [absent, "No such file"]), (empty, [empty, "empty"]),
                                (short, ["6 tokens", "sequence_length 32", "at least 66"]),
                                (cluster.folder / "no*.txt", ["no*.txt", "matches no file"]), (cluster.folder, [cluster.folder])):
                self.failed(cluster, "DATA", words, data=dict(train=[str(path)]))
            self.failed(cluster, "CONFIG", ["/nowhere/ckpt"], checkpoint=dict(init_from="/nowhere/ckpt"))
            cluster.wait_state(cluster.submit(spec(cluster.text, steps=5)), "SUCCEEDED")

    def test_shards(self):
        with Cluster() as cluster:
            base = dict(tokenizer=dict(kind="NONE"), model=dict(vocab=300))
            tokens = [index % 300 for index in range(6000)]

            def data(path):
                return dict(data=dict(train=[str(path)], format="LLMC_BIN"), **base)
            truncated = shard(cluster.folder / "truncated.bin", tokens, claimed=7000)
            self.failed(cluster, "DATA", [truncated, "13024 bytes", "7000 tokens = 15024 bytes"], **data(truncated))
            beyond = shard(cluster.folder / "beyond.bin", tokens[:3000] + [4000] + tokens)
            self.failed(cluster, "DATA", [beyond, "token 3000", "4000", "300"], **data(beyond))
            self.failed(cluster, "DATA", [cluster.text, "magic"], **data(cluster.text))
            cluster.wait_state(cluster.submit(spec(cluster.text, steps=5, **data(shard(cluster.folder / "good.bin", tokens)))),
                               "SUCCEEDED")


class DiskTest(unittest.TestCase):
    def test_run_root_that_is_a_file(self):
        with Cluster(workers={"a": 1}) as cluster:
            cluster.run_root.rmdir()
            cluster.run_root.write_text("in the way")
            job = cluster.submit(spec(cluster.text, devices=1, restart=dict(max_restarts=0)))
            cluster.telar("watch", job, code=1)
            done = cluster.job(job)
            self.assertEqual((done["state"], done["failure_class"]), ("FAILED", "STORAGE"), done["message"])
            self.assertIn(str(cluster.run_root), done["message"])

    def test_full_disk(self):
        if os.geteuid() != 0:
            self.skipTest("mounting a small tmpfs needs root")
        with tempfile.TemporaryDirectory(prefix="telar-e2e-disk-") as mount:
            made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], capture_output=True, text=True, check=False)
            if made.returncode:
                self.skipTest(f"no tmpfs can be mounted here: {made.stderr.strip()}")
            try:
                self.fill(pathlib.Path(mount))
            finally:
                subprocess.run(["umount", "-l", mount], check=True)

    def fill(self, disk):
        with Cluster(workers={"a": 1}, run_root=disk / "runs") as cluster:
            job = cluster.submit(spec(cluster.text, devices=1, steps=2000, checkpoint=dict(every_steps=100, keep=100),
                                      restart=dict(max_restarts=0)))
            cluster.telar("watch", job, code=1)
            done = cluster.job(job)
            self.assertEqual((done["state"], done["failure_class"]), ("FAILED", "STORAGE"), done["message"])
            self.assertIn(str(cluster.run_dir(job)), done["message"])
            self.assertRegex(done["message"], "No space left on device")
            folder = cluster.run_dir(job) / "ckpt"
            steps = sorted(path.name for path in folder.glob("step-*"))
            self.assertTrue(steps)
            self.assertEqual([path.name for path in folder.glob(".*")], [])
            manifest = json.loads((folder / steps[-1] / "manifest.json").read_text())
            for file in manifest["files"]:
                self.assertEqual((folder / steps[-1] / file["name"]).stat().st_size, file["bytes"])
            self.assertEqual(done["progress"]["checkpoint_step"], str(int(steps[-1][5:])))
            self.assertGreaterEqual(cluster.last_step(job), manifest["step"])
            for older in steps[:-1]:
                shutil.rmtree(folder / older)
            good = str(folder / steps[-1])
            cluster.wait_state(cluster.submit(spec(cluster.text, devices=1, steps=5, checkpoint=dict(init_from=good))), "SUCCEEDED")


if __name__ == "__main__":
    unittest.main()
