#!/usr/bin/env python3
"""bench_tokenize beside Hugging Face `tokenizers` and tiktoken: the same text, one thread each, in turns.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 tiktoken==0.14.0
    venv/bin/python bench/tokenize_race.py --bench build/release/bin/bench_tokenize --text FILE FILE.json ...
    venv/bin/python bench/tokenize_race.py ... --pattern llama3 FILE.tiktoken

The best of --repeat turns counts. The ids must agree, or there is no figure.
"""
import argparse
import base64
import os
import subprocess
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tiktoken
import tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"""
              r"""|\s*[\r\n]|\s+(?!\S)|\s""",
    "llama3": LLAMA3,
}


def ours(options, path, whole):
    command = [options.bench, "--text", options.text, "--tokenizer", path, "--threads", "1", "--repeat", "1"]
    command += ["--pattern", options.pattern] if options.pattern else []
    command += ["--whole"] if whole else []
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[1].split()
    return float(line[1]), float(line[2])


def peer(options, path):
    """encode(list of texts) -> number of ids, by the library that reads `path`."""
    if not options.pattern:
        tokenizer = tokenizers.Tokenizer.from_file(path)
        tokenizer.encode_special_tokens = True
        return "tokenizers", lambda texts: sum(
            len(e.ids) for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    with open(path, "rb") as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
    encoding = tiktoken.Encoding("race", pat_str=PATTERNS[options.pattern], mergeable_ranks=ranks, special_tokens={})
    return "tiktoken", lambda texts: sum(len(encoding.encode_ordinary(text)) for text in texts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--pattern", default="")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("tokenizer", nargs="+")
    options = parser.parse_args()
    with open(options.text, encoding="utf-8", newline="") as file:
        text = file.read()
    size = len(text.encode())
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    print(f"{'telar MB/s':>11} {'peer MB/s':>10} {'ratio':>6}  text")
    for path in options.tokenizer:
        name, encode = peer(options, path)
        for how, texts in (("by line", lines), ("whole", [text])):
            best_ours = best_peer = per_token = 0
            for _ in range(options.repeat):
                speed, per_token = ours(options, path, how == "whole")
                best_ours = max(best_ours, speed)
                start = time.perf_counter()
                count = encode(texts)
                best_peer = max(best_peer, size / (time.perf_counter() - start) / 1e6)
            if f"{size / count:.2f}" != f"{per_token:.2f}":
                raise SystemExit(f"{path}: {size / count:.3f} bytes a token by {name}, {per_token} by telar")
            print(f"{best_ours:11.1f} {best_peer:10.2f} {best_ours / best_peer:6.1f}  {how}, {name}, {path}", flush=True)


if __name__ == "__main__":
    main()
