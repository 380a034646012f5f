"""A model of Hugging Face's through the service and back: text prepared with its tokenizer, a job that starts from its weights, an export."""
import array
import json
import unittest

import tiny_models
from cluster import ROOT, Cluster, read_lines, spec

TOKENIZERS = ROOT / "tests/golden/tokenizers"
TEXT = "No man aboard could say how long a night might last, while the wind turned north until morning came with light."


class HuggingFaceTest(unittest.TestCase):
    def prepare(self, cluster, name, tokenizer):
        """The directory, its tokens, and what it says of itself."""
        text, out = cluster.folder / f"{name}.txt", cluster.folder / name
        text.write_text(TEXT)
        cluster.telar("data", "prepare", text, "--out", out, "--tokenizer", tokenizer)
        cluster.telar("data", "check", out)
        described = json.loads((out / "dataset.json").read_text())
        tokens = array.array("H", (out / "shard-00000.bin").read_bytes()).tolist()
        self.assertEqual(len(tokens), described["tokens"])
        self.assertEqual(tokens[-1], described["tokenizer"]["end_of_document"])
        return out, tokens, described["tokenizer"]

    def through_the_service(self, cluster, model, data, tokens, loss, **changes):
        """Trains on the one row that the data has; returns the export."""
        tensors = tiny_models.read_safetensors(model / "model.safetensors")
        wanted = spec(data, devices=2, steps=20, batch={"global": 2, "sequence_length": len(tokens) - 1}, **changes)
        wanted["model"] = json.loads(cluster.telar("ckpt", "convert", "--print-model", model, "-o", "json").stdout)["model"]
        del wanted["tokenizer"]
        wanted["data"] = dict(format="PREPARED", train=[str(data)], eval=[str(data)])
        wanted["checkpoint"] = dict(init_from=str(model))
        job = cluster.submit(wanted)
        cluster.wait_state(job, "SUCCEEDED")
        curve = cluster.curve(job)
        expected = loss(tensors, tokens)
        self.assertAlmostEqual(float(curve[1]), expected, delta=1e-4 * expected)
        self.assertLess(float(curve[20]), 0.9 * expected)
        export = cluster.folder / (data.name + "-export")
        done = cluster.telar("ckpt", "convert", cluster.run_dir(job) / "ckpt/step-00000020", export)
        self.assertNotIn("note:", done.stderr)
        learned = tiny_models.read_safetensors(export / "model.safetensors")
        self.assertEqual({name: shape for name, (shape, _) in learned.items()},
                         {name: shape for name, (shape, _) in tensors.items()})
        evaluated = float([line for line in read_lines(cluster.run_dir(job) / "metrics.jsonl") if "eval_loss" in line][-1]["eval_loss"])
        self.assertAlmostEqual(loss(learned, tokens), evaluated, delta=1e-4 * evaluated)
        self.assertEqual((export / "tokenizer.json").read_bytes(), (model / "tokenizer.json").read_bytes())
        return export

    def test_gpt2(self):
        with Cluster() as cluster:
            data, tokens, tokenizer = self.prepare(cluster, "gpt2", TOKENIZERS / "gpt2.json")
            vocab, end = tokenizer["vocabulary"], tokenizer["end_of_document"]
            model = cluster.folder / "gpt2-model"
            tiny_models.write_model(model, tiny_models.gpt2_config(vocab, 64, bos_token_id=end, eos_token_id=end),
                                    tiny_models.random_tensors(tiny_models.gpt2_shapes(vocab, 64), 1), TOKENIZERS / "gpt2.json")
            export = self.through_the_service(cluster, model, data, tokens, tiny_models.gpt2_loss)
            config = json.loads((export / "config.json").read_text())
            self.assertEqual((config["model_type"], config["bos_token_id"], config["eos_token_id"]), ("gpt2", end, end))

    def test_llama(self):
        with Cluster() as cluster:
            data, tokens, tokenizer = self.prepare(cluster, "llama", TOKENIZERS / "llama3.json")
            vocab = tokenizer["vocabulary"]
            model = cluster.folder / "llama-model"
            tiny_models.write_model(model, tiny_models.llama_config(vocab),
                                    tiny_models.random_tensors(tiny_models.llama_shapes(vocab), 2), TOKENIZERS / "llama3.json")
            export = self.through_the_service(cluster, model, data, tokens, tiny_models.llama_loss,
                                              parallel=dict(zero_stage=1))
            config = json.loads((export / "config.json").read_text())
            known = {entry["content"]: entry["id"] for entry in json.loads((export / "tokenizer.json").read_text())["added_tokens"]}
            self.assertEqual(config["bos_token_id"], known["<|begin_of_text|>"])
            self.assertEqual(config["eos_token_id"], tokenizer["end_of_document"])


if __name__ == "__main__":
    unittest.main()
