#!/usr/bin/env python3
"""Trains GPT-2 on a text file twice from the same weights, by telar-rank and by PyTorch, and compares the loss of every step.

    loss_curve.py --rank-program bin/telar-rank --text kjv.txt --out DIR                  # 1,000 steps of 124M on a GPU
    loss_curve.py --rank-program bin/telar-rank --text kjv.txt --out DIR --device cpu --model tiny --steps 20

Both see the same batches: the order of samples is that of docs/formats/shards.md. The weights are those of a checkpoint
that telar-rank leaves after one step at a rate that changes nothing; both start from that file. DIR gets losses.tsv
(step, ours, PyTorch, both gradient norms) and summary.json. Exit 1: the curves differ by more than the tolerances.
PyTorch is a yardstick here; nothing that we ship needs it.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

MODELS = {"gpt2-124m": (12, 768, 12, 50257), "tiny": (2, 48, 4, 257)}  # layers, hidden, heads, vocabulary
END_OF_DOCUMENT, EVAL_FRACTION, VOCAB_MULTIPLE = 256, 0.02, 64
BETAS, EPSILON, DECAY, MAX_NORM, MIN_RATIO = (0.9, 0.95), 1e-8, 0.1, 1.0, 0.1
NORM_EPSILON = 1e-5
LEAST_RATE = 1e-30  # A step at this rate leaves every weight as it was, to far below its last bit.


# --- The order of samples: docs/formats/shards.md -----------------------------------------------------------------------
MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def permute(index, size, key):
    half = 1
    while 4**half < size:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for r in range(8):
            left, right = right, left ^ (mix(key ^ mix((right << 8) | r)) & mask)
        index = (left << half) | right
        if index < size:
            return index


class Order:
    """Where in `count` tokens a run's samples begin."""

    def __init__(self, count, sequence, seed):
        self.sequence, self.seed = sequence, seed
        self.windows = max(1, (count - sequence) // sequence)
        self.offsets = min(sequence, count - self.windows * sequence)

    def position(self, sample):
        epoch, index = divmod(sample, self.windows)
        key = [mix(mix(mix(self.seed) ^ epoch) ^ purpose) for purpose in (1, 2)]
        window = permute(index, self.windows, key[0]) if self.windows > 1 else index
        return key[1] % self.offsets + window * self.sequence


class Batches:
    """Batches of a run of telar-rank on one text file under the byte tokenizer."""

    def __init__(self, path, sequence, samples, seed):
        import numpy as np

        data = np.frombuffer(pathlib.Path(path).read_bytes(), np.uint8).astype(np.int64)
        self.tokens = np.append(data, END_OF_DOCUMENT)
        held_out = max(sequence + 1, math.floor(len(self.tokens) * EVAL_FRACTION))
        self.order, self.samples, self.stack = Order(len(self.tokens) - held_out, sequence, seed), samples, np.stack

    def of_step(self, step):  # 0 is the first.
        starts = [self.order.position(sample) for sample in range(step * self.samples, (step + 1) * self.samples)]
        rows = self.stack([self.tokens[at : at + self.order.sequence + 1] for at in starts])
        return rows[:, :-1], rows[:, 1:]


def learning_rate(options, step):  # 1 is the first; the cosine of worker/optim/schedule.h.
    if step <= options.warmup:
        return options.rate * step / options.warmup
    x = (step - options.warmup) / max(1, options.steps - options.warmup)
    low = options.rate * MIN_RATIO
    return low + (options.rate - low) * (1 + math.cos(math.pi * min(x, 1.0))) / 2


# --- Ours ---------------------------------------------------------------------------------------------------------------
def rank_plan(options, run_dir, **changes):
    """A RankPlan in protobuf's JSON, complete as the coordinator would have made it."""
    layers, hidden, heads, vocab = MODELS[options.model]
    kind = "GPU" if options.device == "cuda" else "CPU"
    steps, rate = changes.get("steps", options.steps), changes.get("rate", options.rate)
    samples = changes.get("samples", options.samples)
    spec = dict(
        name="loss-curve", seed=options.seed,
        model=dict(architecture="GPT2", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
                   head_dim=hidden // heads, ffn=4 * hidden, vocab=vocab, max_positions=options.sequence, tied_head=True,
                   qkv_bias=True, norm_epsilon=NORM_EPSILON, rope_theta=10000, init_stddev=0.02),
        data=dict(train=[str(options.text)], format="TEXT", eval_fraction=EVAL_FRACTION),
        tokenizer=dict(kind="BYTE"), precision=dict(compute=options.precision.upper()),
        parallel=dict(data=1, tensor=1, pipeline=1, zero_stage=0, bucket_mib=25),
        batch={"global": samples, "micro": min(samples, options.micro), "sequence_length": options.sequence},
        optimizer=dict(learning_rate=rate, beta1=BETAS[0], beta2=BETAS[1], epsilon=EPSILON, weight_decay=DECAY,
                       clip_norm=MAX_NORM),
        schedule=dict(kind="COSINE", steps=steps, warmup_steps=min(options.warmup, steps), min_ratio=MIN_RATIO),
        checkpoint=dict(keep=1, init_from=changes.get("init_from", "")), eval=dict(sequences=1),
        resources=dict(devices=1, kind=kind, threads=options.threads))
    return dict(job="projects/default/jobs/loss-curve", job_uid="loss-curve", epoch=1, rank=0, world_size=1, spec=spec,
                device=dict(kind=kind, index=0), threads=options.threads, run_dir=str(run_dir))


def run_rank(options, name, **changes):
    """Runs telar-rank to its end; returns its run directory."""
    run_dir = options.out / name
    for stale in (run_dir / "metrics.jsonl", run_dir / "ckpt"):
        if stale.exists():
            sys.exit(f"loss_curve.py: {stale} is of an earlier run; give --out a new folder")
    run_dir.mkdir(parents=True, exist_ok=True)
    plan = run_dir / "plan.json"
    plan.write_text(json.dumps(rank_plan(options, run_dir, **changes), indent=1))
    log = run_dir / "rank.log"
    with open(log, "w") as out:
        command = [str(options.rank_program), "--plan", str(plan), "--events", str(run_dir / "events.jsonl")]
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
    if code != 0:
        sys.exit(f"loss_curve.py: {' '.join(command)} exited {code}; the end of {log}:\n{log.read_text()[-2000:]}")
    return run_dir


def read_metrics(path):
    with open(path) as lines:
        return [step for step in map(json.loads, lines) if "loss" in step]


def newest_checkpoint(run_dir):
    return max((run_dir / "ckpt").glob("step-*"))


def read_masters(directory):
    """The fp32 weights of a checkpoint, by our names; layout: docs/formats/checkpoint.md."""
    import numpy as np

    manifest = json.loads((directory / "manifest.json").read_text())
    weights, shards = {}, {}
    for tensor in manifest["tensors"]:
        if tensor["kind"] != "master":
            continue
        whole = np.zeros(tensor["shape"], np.float32)
        for chunk in tensor["chunks"]:
            if chunk["file"] not in shards:
                raw = np.memmap(directory / chunk["file"], np.uint8, "r")
                length = int(raw[:8].view(np.uint64)[0])
                shards[chunk["file"]] = (raw, 8 + length, json.loads(bytes(raw[8 : 8 + length])))
            raw, base, header = shards[chunk["file"]]
            first, last = header[chunk["key"]]["data_offsets"]
            box = tuple(slice(at, at + n) for at, n in zip(chunk["offset"], chunk["shape"]))
            whole[box] = np.frombuffer(raw[base + first : base + last].tobytes(), np.float32).reshape(chunk["shape"])
        weights[tensor["name"]] = whole
    return weights


# --- PyTorch ------------------------------------------------------------------------------------------------------------
def make_torch_model(options, weights):
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F

    layers, hidden, heads, vocab = MODELS[options.model]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn_norm, self.mlp_norm = (nn.LayerNorm(hidden, eps=NORM_EPSILON) for _ in range(2))
            self.qkv, self.o = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def forward(self, x):
            rows, length, _ = x.shape
            q, k, v = (part.view(rows, length, heads, hidden // heads).transpose(1, 2)
                       for part in self.qkv(self.attn_norm(x)).split(hidden, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(rows, length, hidden))
            return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            padded = -(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE  # Odd widths are slow; the rows stay zero.
            self.embed, self.positions = nn.Embedding(padded, hidden), nn.Embedding(options.sequence, hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.final_norm = nn.LayerNorm(hidden, eps=NORM_EPSILON)

        def forward(self, inputs, targets):
            x = self.embed(inputs) + self.positions.weight[: inputs.shape[1]]
            for layer in self.layers:
                x = layer(x)
            logits = F.linear(self.final_norm(x), self.embed.weight)[..., :vocab]
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    model = Gpt2()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".qkv." in key:
                value = np.concatenate([weights[key.replace(".qkv.", f".{part}.")] for part in "qkv"])
            else:
                value = weights[key]
            parameter.zero_()
            parameter[: len(value)].copy_(torch.from_numpy(value))
    return model


def train_torch(options, batches, weights):
    import torch

    torch.set_num_threads(max(1, options.threads))
    torch.backends.cuda.matmul.allow_tf32 = False
    model = make_torch_model(options, weights).to(options.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([
        dict(params=[p for p in parameters if p.dim() == 2], weight_decay=DECAY),
        dict(params=[p for p in parameters if p.dim() != 2], weight_decay=0.0),
    ], lr=options.rate, betas=BETAS, eps=EPSILON, fused=True)
    run = model if options.device == "cpu" or options.eager else torch.compile(model)
    rows = min(options.samples, options.torch_micro)
    parts = options.samples // rows
    warm, start = 10, None  # The first steps compile.
    losses, norms = [], []
    for step in range(1, options.steps + 1):
        inputs, targets = (torch.from_numpy(part).to(options.device) for part in batches.of_step(step - 1))
        loss = torch.zeros((), device=options.device)
        for at in range(0, options.samples, rows):
            with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
                part = run(inputs[at : at + rows], targets[at : at + rows]) / parts
            part.backward()
            loss += part.detach()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM).detach())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(options, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        if step % 100 == 0 or step == warm:
            print(f"PyTorch step {step}: loss {loss.item():.4f}", flush=True)
        if step == warm:
            start = time.perf_counter()
    losses, norms = [loss.item() for loss in losses], [norm.item() for norm in norms]  # Waits for the device.
    tokens = (options.steps - warm) * options.samples * options.sequence
    return losses, norms, tokens / (time.perf_counter() - start) if tokens > 0 else 0.0


# --- Comparison ---------------------------------------------------------------------------------------------------------
def compare(options, ours, theirs):
    """ours, theirs: lists of (loss, norm). Prints the table; returns the summary."""
    rows = [(step, a[0], b[0], a[1], b[1]) for step, (a, b) in enumerate(zip(ours, theirs), start=1)]
    with open(options.out / "losses.tsv", "w") as out:
        out.write("step\ttelar\tpytorch\ttelar_grad_norm\tpytorch_grad_norm\n")
        out.writelines("\t".join([str(row[0])] + [f"{value:.6f}" for value in row[1:]]) + "\n" for row in rows)
    shown = [1, 2, 5, 10, 20, 50] + list(range(100, len(rows) + 1, 100)) + [len(rows)]
    print(f"{'step':>6} {'telar':>9} {'pytorch':>9} {'difference':>11}")
    for step in sorted({step for step in shown if step <= len(rows)}):
        _, a, b, _, _ = rows[step - 1]
        print(f"{step:6d} {a:9.4f} {b:9.4f} {a - b:+11.5f}")
    difference = [abs(row[1] - row[2]) for row in rows]
    tail = rows[-100:]
    summary = dict(
        steps=len(rows), first_difference=difference[0], mean_difference=statistics.mean(difference),
        greatest_difference=max(difference), tail_steps=len(tail),
        tail_telar=statistics.mean(row[1] for row in tail), tail_pytorch=statistics.mean(row[2] for row in tail))
    summary["tail_difference"] = summary["tail_telar"] - summary["tail_pytorch"]
    finite = all(math.isfinite(value) for row in rows for value in row[1:3])
    summary["agree"] = (finite and len(ours) == len(theirs) == options.steps
                        and difference[0] <= options.first_tolerance
                        and abs(summary["tail_difference"]) <= options.tail_tolerance)
    print(f"|difference|: first step {difference[0]:.2g}, mean {summary['mean_difference']:.2g}, greatest "
          f"{summary['greatest_difference']:.2g}; mean of the last {len(tail)} steps: telar {summary['tail_telar']:.4f}, "
          f"pytorch {summary['tail_pytorch']:.4f}, {summary['tail_difference']:+.5f} (allowed {options.tail_tolerance:g})")
    return summary


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank-program", type=pathlib.Path, required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a new folder")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt2-124m")
    parser.add_argument("--precision", choices=["bf16", "fp32"], help="default: bf16 on cuda, fp32 on cpu")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sequence", type=int, help="default: 1024; tiny: 32")
    parser.add_argument("--samples", type=int, help="sequences a step; default 64; tiny: 4")
    parser.add_argument("--micro", type=int, default=64, help="ours, sequences at once")
    parser.add_argument("--torch-micro", type=int, default=32, help="PyTorch's")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--first-tolerance", type=float, help="of step 1; default 5e-3 in bf16, 1e-5 in fp32")
    parser.add_argument("--tail-tolerance", type=float, help="of the mean of the last 100; default 0.02, 1e-4")
    options = parser.parse_args()
    tiny = options.model == "tiny"
    options.sequence = options.sequence or (32 if tiny else 1024)
    options.samples = options.samples or (4 if tiny else 64)
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    low = options.precision == "bf16"
    options.first_tolerance = options.first_tolerance or (5e-3 if low else 1e-5)
    options.tail_tolerance = options.tail_tolerance or (0.02 if low else 1e-4)
    options.warmup = min(options.warmup, max(1, options.steps // 2))
    if options.samples % min(options.samples, options.micro) or options.samples % min(options.samples, options.torch_micro):
        parser.error("--samples must be a multiple of --micro and --torch-micro")
    options.text, options.out = options.text.resolve(), options.out.resolve()
    return options


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    init = run_rank(options, "init", steps=1, rate=LEAST_RATE, samples=1)
    weights = newest_checkpoint(init)
    start = time.perf_counter()
    ours = read_metrics(run_rank(options, "telar", init_from=str(weights)) / "metrics.jsonl")
    print(f"telar-rank: {len(ours)} steps in {time.perf_counter() - start:.0f} s, median "
          f"{statistics.median(step['tokens_per_second'] for step in ours):,.0f} tokens/s", flush=True)
    start = time.perf_counter()
    batches = Batches(options.text, options.sequence, options.samples, options.seed)
    losses, norms, rate = train_torch(options, batches, read_masters(weights))
    print(f"PyTorch: {len(losses)} steps in {time.perf_counter() - start:.0f} s, {rate:,.0f} tokens/s after the first ten")
    nan = float("nan")  # metrics.jsonl says null for what is not finite.
    summary = compare(options, [(step["loss"] if step["loss"] is not None else nan, step["grad_norm"] or nan) for step in ours],
                      list(zip(losses, norms)))
    summary["pytorch_tokens_per_second"] = rate
    summary["telar_tokens_per_second"] = statistics.median(step["tokens_per_second"] for step in ours)
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print("loss curves agree" if summary["agree"] else "LOSS CURVES DIFFER")
    return 0 if summary["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
