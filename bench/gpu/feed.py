#!/usr/bin/env python3
"""Whether a fast small model ever waits for its data: jobs over text and over a shard of token ids; rate and data wait of each.

    bench/gpu/feed.py --bin build/release/bin --text FILE [--steps N] [--out DIR]

Data wait is what metrics.jsonl calls so: how long the loop stood at the loader for the next batch, by a host that is two steps ahead of
the device. Its share is over all steps behind the first few. Exit 0: each job ended well, took at least --rate tokens/s and waited
for at most --share of its time.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import layouts

WARM = 8
MODEL = {"architecture": "LLAMA", "layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1408, "tied_head": True}


def run(service, options, name, vocab, data):
    sequence, micro, whole = options.batch.split(",")
    line = {"name": name, "preset": "gpt2-124m", "sequence": sequence, "micro": micro, "global": whole, "parallel": "data=1"}
    spec = layouts.spec_of(line, options.text, options.steps)
    spec.update({"model": MODEL | {"vocab": vocab}, "trace": {}, **data})
    job = service.submit(spec)
    watched = service.telar("watch", job, limit=600)
    if watched.returncode:
        sys.exit(f"{name}: {watched.stdout[-1500:]}{watched.stderr[-1500:]}")
    lines = [json.loads(text) for text in (service.out / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    steps = [one for one in lines if "grad_norm" in one and one["step"] > WARM]
    seconds = sum(one["seconds"] for one in steps)
    rate = int(sequence) * int(whole) / statistics.median(one["seconds"] for one in steps)
    waits = [one.get("data_wait", 0.0) for one in steps]
    share = sum(waits) / seconds
    print(f"{name:8}{rate / 1e6:8.2f} M tokens/s over {len(steps)} steps; data wait {share:.4%} of them, at most {1e3 * max(waits):.3f} ms in "
          f"one of {1e3 * seconds / len(steps):.1f} ms")
    return rate >= options.rate and share <= options.share


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--batch", default="1024,128,256", help="sequence length, micro, global")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=1e6, help="tokens/s below which this says nothing")
    parser.add_argument("--share", type=float, default=0.001)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.text = options.text.resolve()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-feed."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    tokens = out / "tokens.bin"
    layouts.write_tokens(tokens, 1 << 22, 50257)
    service = layouts.Service(options.bin.resolve(), out)
    try:
        service.wait_for_devices()
        fed = [run(service, options, "text", 257, {"data": {"train": [str(options.text)]}, "tokenizer": {"kind": "BYTE"}}),
               run(service, options, "tokens", 50257, {"data": {"train": [str(tokens)], "format": "LLMC_BIN"}})]
    finally:
        service.stop()
    return 0 if all(fed) else 1


if __name__ == "__main__":
    sys.exit(main())
