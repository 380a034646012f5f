#!/usr/bin/env python3
"""What a save costs the steps beside it: one job without saves, one that saves beside training, one that waits for its saves.

    bench/gpu/stall.py --bin build/release/bin [--preset llama3-8b+layers=8 --batch 4096,2,8] [--steps N --every N] [--out DIR]
    bench/gpu/stall.py --bin build/release/bin --kind cpu --model '{"architecture": "LLAMA", ...}' --batch 128,8,8

A stall is what metrics.jsonl calls checkpoint_stall: how long the device stood before an update that would have overwritten what was
being copied: in the step behind the one that is saved. Where the next save came due before one was done, training waited for that too,
in an earlier step: shown by itself, as larger steps between saves would avoid it. `lost` is all that a save cost, the slower steps beside it included: the
seconds of all steps less as many median steps of the job without saves, a save; for the job that waits, the whole save. A share is of
one save a minute. The folder of the runs should be on the file system that is asked about. Exit 0: all jobs ended well.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import sys
import tempfile

import layouts

WARM = 5  # Steps until all is tuned and captured; saves come later.


def run(service, line, tokens, options, name, checkpoint):
    spec = layouts.spec_of(line, tokens, options.steps)
    spec.update({"name": name, "checkpoint": checkpoint, "trace": {}})
    spec["resources"]["kind"] = options.kind.upper()
    if options.kind == "cpu":
        spec["precision"] = {"compute": "FP32"}
    if options.threads:
        spec["resources"]["threads"] = options.threads
    if options.model:
        spec["model"] = json.loads(options.model)
    job = service.submit(spec)
    watched = service.telar("watch", job, limit=1800)
    folder = service.out / "runs" / job
    if watched.returncode:
        sys.exit(f"{name}: {watched.stdout[-1500:]}{watched.stderr[-1500:]}")
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    shutil.copy(folder / "metrics.jsonl", service.out / f"{name}.metrics.jsonl")
    shutil.rmtree(folder, ignore_errors=True)
    steps = [one for one in lines if "grad_norm" in one and one["step"] > WARM]
    return steps, [one for one in lines if one.get("saved")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--kind", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--preset", default="llama3-8b+layers=8")
    parser.add_argument("--model", default="", help="a ModelSpec in JSON instead of a preset")
    parser.add_argument("--batch", default="4096,2,8", help="sequence length, micro, global")
    parser.add_argument("--vocab", type=int, default=0, help="of the random tokens; default: the preset's")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads to compute with; default: all")
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-stall."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sequence, micro, whole = options.batch.split(",")
    line = {"name": "stall", "preset": options.preset, "sequence": sequence, "micro": micro, "global": whole,
            "parallel": "data=1"}
    vocab = options.vocab or (50257 if options.preset.startswith("gpt2") else 128256)
    tokens = out / "tokens.bin"
    layouts.write_tokens(tokens, 1 << 20, vocab)
    saves = {"every_steps": options.every, "at_end": False, "keep": 1}
    service = layouts.Service(options.bin.resolve(), out, options.kind)
    try:
        service.wait_for_devices()
        plain, _ = run(service, line, tokens, options, "plain", {"at_end": False})
        beside, saved = run(service, line, tokens, options, "beside", {**saves, "async": True})
        _, waited = run(service, line, tokens, options, "waits", {**saves, "async": False})
    finally:
        service.stop()
    step = statistics.median(one["seconds"] for one in plain)
    # The save behind a step before the first that counts is not among them.
    count = max(1, sum(1 for one in saved if one["step"] > WARM))
    stalls = [(one["step"], one["checkpoint_stall"]) for one in beside if one.get("checkpoint_stall", 0) > 0]
    stall = sum(seconds for at, seconds in stalls if at % options.every == 1) / count
    overtaken = sum(seconds for at, seconds in stalls if at % options.every != 1) / count
    lost = sum(one["seconds"] for one in beside) / count - len(beside) * step / count
    blocked = statistics.mean(one["save_stall_seconds"] for one in waited)
    size = saved[-1]["save_bytes"]
    result = {"step_s": step, "saves": count, "bytes": size, "save_s": statistics.mean(one["save_seconds"] for one in saved),
              "stall_s": stall, "overtaken_s": overtaken, "lost_s": lost, "blocking_s": blocked, "stalls": stalls}
    (out / "results.json").write_text(json.dumps(result, indent=1))
    print(f"step {1e3 * step:.1f} ms; a save has {size / 1e9:.3f} GB and takes {result['save_s']:.2f} s beside training")
    print(f"{'':14}{'stall, ms a save':>18}{'lost, ms a save':>17}{'share at one a minute':>23}")
    print(f"{'beside':14}{1e3 * stall:18.1f}{1e3 * lost:17.1f}{stall / 60:22.3%} (lost: {lost / 60:.3%})")
    if overtaken > 0:
        print(f"{'':14}{1e3 * overtaken:18.1f} more a save for the one before it: {options.every} steps are shorter than a save")
    print(f"{'waits':14}{1e3 * blocked:18.1f}{1e3 * blocked:17.1f}{blocked / 60:22.3%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
