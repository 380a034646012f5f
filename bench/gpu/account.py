#!/usr/bin/env python3
"""What it costs to account for a step's time (trace.account_every), and what the account says: jobs with and without, in turns.

    bench/gpu/account.py --bin build/release/bin [--preset gpt2-124m --batch 1024,64,64] [--every N] [--steps N] [--parallel data=1]

An accounted step runs op by op instead of from a graph. Cost: what it takes longer than the median of the others, over all steps
at one in 100. The account's parts are rank 0's, the mean. Exit 0: all jobs ended well, and every account summed to its step.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import layouts

WARM = 8


def run(service, line, tokens, steps, every):
    spec = layouts.spec_of(line, tokens, steps)
    spec.update({"name": f"account-{every}", "trace": {"account_every": every}})
    job = service.submit(spec)
    watched = service.telar("watch", job, limit=600)
    if watched.returncode:
        sys.exit(f"{spec['name']}: {watched.stdout[-1500:]}{watched.stderr[-1500:]}")
    lines = [json.loads(text) for text in (service.out / "runs" / job / "metrics.jsonl").read_text().splitlines()]
    return [one for one in lines if "grad_norm" in one and one["step"] > WARM]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--preset", default="gpt2-124m")
    parser.add_argument("--batch", default="1024,64,64", help="sequence length, micro, global")
    parser.add_argument("--parallel", default="data=1")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="telar-account."))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sequence, micro, whole = options.batch.split(",")
    line = {"name": "account", "preset": options.preset, "sequence": sequence, "micro": micro, "global": whole,
            "parallel": options.parallel}
    tokens = out / "tokens.bin"
    layouts.write_tokens(tokens, 1 << 20, 50257 if options.preset.startswith("gpt2") else 128256)
    service = layouts.Service(options.bin.resolve(), out)
    try:
        service.wait_for_devices()
        without = run(service, line, tokens, options.steps, 0)
        steps = run(service, line, tokens, options.steps, options.every)
        without += run(service, line, tokens, options.steps, 0)
    finally:
        service.stop()
    plain = statistics.median(one["seconds"] for one in without)
    accounts = [one for one in steps if "account" in one]
    others = statistics.median(one["seconds"] for one in steps if "account" not in one)
    taken = statistics.median(one["seconds"] for one in accounts)
    print(f"step without accounts {1e3 * plain:.2f} ms; with one in {options.every}: {1e3 * others:.2f} ms the others, {1e3 * taken:.2f} ms "
          f"the accounted; one in 100 costs {max(0.0, taken - others) / 100 / others:.3%}")
    parts = {name: statistics.mean(one["account"].get(name, 0) for one in accounts) for name in accounts[-1]["account"]}
    total = sum(parts.values())
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        print(f"  {name:22}{1e3 * seconds:9.2f} ms {seconds / total:7.1%}")
    if any("bubble" in one for one in accounts):
        print(f"  bubble {statistics.mean(one['bubble'] for one in accounts):.1%}")
    wrong = [one["step"] for one in accounts if abs(sum(one["account"].values()) - one["seconds"]) > 0.02 * one["seconds"]]
    if wrong:
        print(f"accounts that miss their step by more than 2 %: of steps {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
