#!/usr/bin/env python3
"""The loss of one model in several precisions: jobs from the same weights, on the same samples, one after the other.

    bench/gpu/precision.py --bin build/release/bin --text FILE [--preset gpt2-124m | --model JSON] [--batch 1024,16,16]
                           [--precisions bf16,fp8,fp8-delayed] [--steps N] [--out DIR]

Text under the byte tokenizer. A precision that is named twice runs twice: how far one run is from the next, as products and the
backward of attention add up in another order each time. Prints the mean loss of each 100 steps, and how far the others are from the first over the last 100
and at the worst over any 100. Exit 0: all jobs ended well and stayed within --bound (0.005) of the first over the last 100.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import layouts

WINDOW = 100


def precision_of(name):
    """fp8-delayed: recipe delayed."""
    compute, _, recipe = name.upper().partition("-")
    return {"compute": compute, "recipe": recipe} if recipe else {"compute": compute}


def run(service, options, precision):
    sequence, micro, whole = options.batch.split(",")
    line = {"name": f"precision-{precision}", "preset": options.preset, "sequence": sequence, "micro": micro, "global": whole,
            "parallel": "data=1"}
    spec = layouts.spec_of(line, options.text, options.steps)
    spec.update({"seed": 7, "trace": {}, "data": {"train": [str(options.text)]}, "tokenizer": {"kind": "BYTE"},
                 "precision": precision_of(precision), "optimizer": {"learning_rate": options.rate},
                 "schedule": {"kind": "COSINE", "steps": options.steps, "warmup_steps": options.steps // 20}})
    if options.model:
        spec["model"] = json.loads(options.model)
    job = service.submit(spec)
    watched = service.telar("watch", job, limit=1800)
    if watched.returncode:
        sys.exit(f"{spec['name']}: {watched.stdout[-1500:]}{watched.stderr[-1500:]}")
    lines = [json.loads(text) for text in (service.out / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    steps = [one for one in lines if "grad_norm" in one]
    return [one["loss"] for one in steps], statistics.median(one["seconds"] for one in steps), \
        [one["eval_loss"] for one in lines if "eval_loss" in one]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--preset", default="gpt2-124m")
    parser.add_argument("--model", default="", help="a ModelSpec in JSON instead of a preset")
    parser.add_argument("--batch", default="1024,16,16", help="sequence length, micro, global")
    parser.add_argument("--precisions", default="bf16,fp8")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--bound", type=float, default=0.005)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.text = options.text.resolve()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-precision."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    service = layouts.Service(options.bin.resolve(), out)
    wanted = options.precisions.split(",")
    names = [name + "'" * wanted[:i].count(name) for i, name in enumerate(wanted)]
    try:
        service.wait_for_devices()
        runs = {name: run(service, options, precision) for name, precision in zip(names, wanted)}
    finally:
        service.stop()
    means = {name: [statistics.mean(losses[i:i + WINDOW]) for i in range(0, len(losses) - WINDOW + 1, WINDOW)]
             for name, (losses, _, _) in runs.items()}
    (out / "curves.json").write_text(json.dumps({name: {"losses": losses, "step_seconds": seconds, "eval": held_out}
                                                 for name, (losses, seconds, held_out) in runs.items()}))
    print("steps".rjust(10) + "".join(name.rjust(13) for name in names))
    for i in range(len(means[names[0]])):
        print(f"{i * WINDOW + 1:5}-{(i + 1) * WINDOW:<4}" + "".join(f"{means[name][i]:13.4f}" for name in names))
    bad = False
    for name in names:
        losses, seconds, held_out = runs[name]
        worst = max(abs(own / first - 1) for own, first in zip(means[name], means[names[0]]))
        last = means[name][-1] / means[names[0]][-1] - 1
        bad = bad or abs(last) > options.bound
        print(f"{name}: {1e3 * seconds:.1f} ms a step ({runs[names[0]][1] / seconds:.2f} x), last {WINDOW} steps {last:+.3%}, worst {WINDOW} "
              f"{worst:.3%}, held out {held_out[-1] if held_out else float('nan'):.4f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
