#!/usr/bin/env python3
"""The last table of run.sh, from what its parts left in a folder.

    table.py MODELS_FILE OUT_DIR [MODEL]...

Reads OUT_DIR/parts.tsv (part, exit code, seconds, log), step-MODEL.json and ours-MODEL-ROUND.json of bench_step, and the
peers' logs peer-MODEL-ROUND.log. Of several rounds the better counts, on both sides: other work on the machine only slows.
Writes OUT_DIR/results.json. Exit 1: some part failed, or left no figure where it should have; targets decide nothing.
"""
import json
import pathlib
import re
import statistics
import sys

FIELDS = ("model", "preset", "sequence", "micro", "accum", "steps", "peer", "target")


def read_models(path):
    lines = (line.split("#")[0].split() for line in path.read_text().splitlines())
    models = [dict(zip(FIELDS, line)) for line in lines if line]
    for model in models:
        if len(model) != len(FIELDS):
            sys.exit(f"table.py: {path}: {model['model']} has {len(model)} fields, not {len(FIELDS)}")
    return models


def ours_of(path):
    """(tokens/s, MFU or None) of a bench_step run, None where it left nothing usable."""
    try:
        step = json.loads(path.read_text())
        return float(step["tokens_per_second"]), step.get("mfu")
    except (OSError, ValueError, KeyError, TypeError):
        return None


def llmc_rate(text, tokens):
    """llm.c prints each step's milliseconds; the first steps warm up. Its own tokens/s is a running mean, not used."""
    times = [float(ms) for ms in re.findall(r"^step +\d+/\d+ .*\| ([\d.]+) ms \|", text, re.MULTILINE)][2:]
    return tokens / (statistics.median(times) / 1e3) if times else None


def torch_rate(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return float(json.loads(line)["tok_s"])
            except (ValueError, KeyError):
                return None
    return None


def peer_of(model, path):
    kind = model["peer"].split(":")[0]
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    if kind == "llm.c":
        return llmc_rate(text, int(model["sequence"]) * int(model["micro"]) * int(model["accum"]))
    return torch_rate(text)


def row_of(model, out):
    name, (kind, *peer) = model["model"], model["peer"].split(":")
    runs = [ours_of(path) for path in sorted(out.glob(f"ours-{name}-*.json"))] or [ours_of(out / f"step-{name}.json")]
    ours = max((run for run in runs if run), default=None)
    if kind == "figure":
        peer_name, rate = f"{peer[0]}, by hand", float(peer[1])
    else:
        peer_name = kind
        rates = [peer_of(model, path) for path in sorted(out.glob(f"peer-{name}-*.log"))]
        rate = max((rate for rate in rates if rate), default=None)
    ratio = ours[0] / rate if ours and rate else None
    target = float(model["target"])
    return dict(model=name, tokens_per_second=ours and ours[0], mfu=ours and ours[1], peer=peer_name,
                peer_tokens_per_second=rate, ratio=ratio, target=target, met=ratio >= target if ratio else None)


def cell(value, form):
    return "-" if value is None else form.format(value)


def print_table(rows):
    print(f"{'model':<14} {'tokens/s':>10} {'MFU':>7}  {'peer':<13} {'tokens/s':>10} {'ratio':>6} {'target':>6}")
    for row in rows:
        verdict = {None: "", True: "met", False: "NOT MET"}[row["met"]]
        print(f"{row['model']:<14} {cell(row['tokens_per_second'], '{:,.0f}'):>10} {cell(row['mfu'], '{:.1%}'):>7}  "
              f"{row['peer']:<13} {cell(row['peer_tokens_per_second'], '{:,.0f}'):>10} "
              f"{cell(row['ratio'], '{:.3f}'):>6} {row['target']:6.2f}  {verdict}".rstrip())


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    models, out, wanted = read_models(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2]), sys.argv[3:]
    known = {model["model"] for model in models}
    for name in wanted:
        if name not in known:
            sys.exit(f"table.py: no model {name}; there are {' '.join(sorted(known))}")
    rows = [row_of(model, out) for model in models if not wanted or model["model"] in wanted]
    parts = []
    if (out / "parts.tsv").exists():
        for line in (out / "parts.tsv").read_text().splitlines():
            part, code, seconds, log = line.split("\t")
            parts.append(dict(part=part, code=int(code), seconds=int(seconds), log=log))
    failed = [part for part in parts if part["code"] != 0]
    ran = {part["part"].split()[0] for part in parts}
    if {"step", "ours"} & ran:
        print_table(rows)
    for part in failed:
        why = {124: "timed out", 137: "timed out, killed"}.get(part["code"], f"exit {part['code']}")
        print(f"FAILED  {part['part']}: {why} after {part['seconds']} s, {part['log']}")
    lost = [part["part"] for part in parts if part["code"] == 0 and lacks_figure(part["part"], models, out)]
    for part in lost:
        print(f"FAILED  {part}: left no figure")
    print(f"{len(parts) - len(failed) - len(lost)} of {len(parts)} parts passed; logs and results.json in {out}")
    (out / "results.json").write_text(json.dumps(dict(rows=rows, parts=parts), indent=1) + "\n")
    return 1 if failed or lost else 0


def lacks_figure(part, models, out):
    kind, *rest = part.split()
    if kind == "step":
        return ours_of(out / f"step-{rest[0]}.json") is None
    if kind == "ours":
        return ours_of(out / f"ours-{rest[0]}-{rest[1]}.json") is None
    if kind == "peer":
        model = next(model for model in models if model["model"] == rest[0])
        return peer_of(model, out / f"peer-{rest[0]}-{rest[1]}.log") is None
    return False


if __name__ == "__main__":
    sys.exit(main())
