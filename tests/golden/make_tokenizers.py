#!/usr/bin/env python3
"""Small tokenizers of every style, and what the libraries that people use make of 10,000 strings with them.

Run by hand; tests/worker/tokenizer/golden_test.cc reads what it writes to tests/golden/tokenizers/:

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 tiktoken==0.14.0 sentencepiece==0.2.3
    venv/bin/python tests/golden/make_tokenizers.py

Trained on Debian's /usr/share/common-licenses and on strings as the test's, so that other scripts have merges, too.
"""
import base64
import io
import json
import os
import pathlib
import sys

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "tokenizers"
COUNT, PER_HASH, FULL = 10_000, 50, 100
MASK = (1 << 64) - 1
PARTS = json.loads((HERE / "strings.json").read_text())

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
          r"|\s*[\r\n]|\s+(?!\S)|\s")
OWN = r" ?\p{Lu}?[\p{Ll}\p{M}]+|\p{N}{2}|\s+$|[\s\S]"
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]


class Random:
    """splitmix64; tests/worker/tokenizer/fuzz_strings.h has the same."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return self.next() % n

    def code(self, low, high):
        return chr(low + self.below(high - low + 1))


def part(random):
    kind = random.below(16)
    if kind < 4:
        return PARTS["fragments"][random.below(len(PARTS["fragments"]))]
    if kind < 7:
        return "".join(random.code(97, 122) if random.below(4) else random.code(65, 90)
                       for _ in range(1 + random.below(8)))
    if kind == 7:
        return "".join(random.code(48, 57) for _ in range(1 + random.below(8)))
    if kind == 8:
        return PARTS["spaces"][random.below(len(PARTS["spaces"]))] * (1 + random.below(10))
    if kind < 13:
        low, high = PARTS["ranges"][random.below(len(PARTS["ranges"]))]
        return "".join(random.code(low, high) for _ in range(1 + random.below(5)))
    if kind == 13:
        low, high = PARTS["ranges"][random.below(len(PARTS["ranges"]))]
        return random.code(low, high) + "".join(random.code(0x300, 0x36F) for _ in range(1 + random.below(3)))
    if kind == 14:
        return "".join(random.code(33, 47) for _ in range(1 + random.below(5)))
    return " "


def string(index):
    random = Random(index)
    return "".join(part(random) for _ in range(1 + random.below(12)))


def bytes_with_errors(index):
    """Every eighth string has a byte in it that breaks it."""
    data = string(index).encode()
    if index % 8 == 7:
        random = Random(~index & MASK)
        at = random.below(len(data) + 1)
        data = data[:at] + bytes([128 + random.below(128)]) + data[at:]
    return data


class Hashes:
    """FNV-1a, 64 bits, a fresh one every PER_HASH strings."""

    def __init__(self):
        self.all, self.value, self.count = [], 0xCBF29CE484222325, 0

    def add(self, data):
        for byte in data + b"\xff\xff\xff\xff":
            self.value = ((self.value ^ byte) * 0x100000001B3) & MASK
        self.count += 1
        if self.count % PER_HASH == 0:
            self.all.append(f"{self.value:016x}")
            self.value = 0xCBF29CE484222325


def write_golden(name, spec, encoders, decoders_):
    """encoders: (string index) -> ids; decoders_: ids -> bytes, run on the ids of the encoder of the same name."""
    golden = {"spec": spec, "encode": {}, "decode": {}}
    for how, encode in encoders.items():
        hashes, full, texts = Hashes(), [], Hashes()
        for index in range(COUNT):
            ids = encode(index)
            hashes.add(b"".join(i.to_bytes(4, "little") for i in ids))
            if index < FULL:
                full.append(ids)
            if how in decoders_:
                texts.add(decoders_[how](ids))
        golden["encode"][how] = {"hashes": hashes.all, "first": full}
        if how in decoders_:
            golden["decode"][how] = texts.all
    (HERE / f"{name}.golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    print(name, "done", flush=True)


def training_text(strings=4_000):
    licenses = sorted(p for p in pathlib.Path("/usr/share/common-licenses").iterdir() if not p.is_symlink())
    for path in licenses:
        yield from path.read_text(errors="ignore").splitlines(keepends=True)
    for index in range(1_000_000, 1_000_000 + strings):
        yield string(index)


def train(pre_tokenizer, normalizer=None, size=700):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(training_text(), trainer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def plain_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def hugging_face(name, tokenizer, spec=None, old_merges=False):
    path = HERE / f"{name}.json"
    tokenizer.save(str(path), pretty=False)
    data = json.loads(path.read_text())
    if old_merges:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")
    text = tokenizers.Tokenizer.from_file(str(path))
    text.encode_special_tokens = True
    special = tokenizers.Tokenizer.from_file(str(path))
    write_golden(
        name, {"kind": "HUGGING_FACE", "path": path.name, **(spec or {})},
        {"text": lambda i: text.encode(string(i), add_special_tokens=False).ids,
         "special": lambda i: special.encode(string(i), add_special_tokens=True).ids},
        {"text": lambda ids: special.decode(ids, skip_special_tokens=True).encode(),
         "special": lambda ids: special.decode(ids, skip_special_tokens=False).encode()})


def make_hugging_face():
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.post_processor = processors.ByteLevel(trim_offsets=True)
    gpt2.add_special_tokens(["<|endoftext|>", AddedToken("<mask>", lstrip=True, special=True)])
    gpt2.add_tokens([AddedToken("<tool>"), AddedToken("[R]", rstrip=True), AddedToken("word", single_word=True),
                     AddedToken("<tool>s", normalized=False), AddedToken("[LR]", lstrip=True, rstrip=True)])
    hugging_face("gpt2", gpt2, old_merges=True)

    starcoder = train(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=True)]))
    starcoder.add_special_tokens(["<|endoftext|>"])
    hugging_face("starcoder", starcoder)

    data = json.loads(train(pre_tokenizers.Sequence([split(LLAMA3), plain_bytes()])).to_str())
    data["model"]["ignore_merges"] = True
    for word in ["\u0120quokka", "Zzz", "qzqz"]:  # Whole words that merges do not make.
        data["model"]["vocab"][word] = len(data["model"]["vocab"])
    llama3 = tokenizers.Tokenizer.from_str(json.dumps(data))
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos, eot = llama3.token_to_id("<|begin_of_text|>"), llama3.token_to_id("<|eot_id|>")
    template = dict(special_tokens=[("<|begin_of_text|>", bos), ("<|eot_id|>", eot)])
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A <|eot_id|>", pair="$A $B", **template)])
    hugging_face("llama3", llama3)

    qwen2 = train(pre_tokenizers.Sequence([split(QWEN2), plain_bytes()]), normalizers.NFC())
    qwen2.post_processor = processors.ByteLevel(trim_offsets=False)
    qwen2.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen2.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("s\u0323\u0307x", normalized=True),
                      AddedToken("e\u0301\u0323", normalized=False)])
    hugging_face("qwen2", qwen2, {"end_of_document": "<|im_end|>"})

    o200k = train(pre_tokenizers.Sequence([split(O200K, "removed", True), plain_bytes()]))
    hugging_face("o200k", o200k)

    deepseek = train(pre_tokenizers.Sequence([split(p) for p in DEEPSEEK] + [plain_bytes()]))
    hugging_face("deepseek", deepseek)

    behaviours = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "merged_with_next"), split(r"[,.;:!?'\"]+", "merged_with_previous"),
        split(r"[\p{Lu}]", "contiguous"), split(r"\p{M}", "merged_with_next", True), pre_tokenizers.Digits(),
        split(r"[-/]", "removed"), plain_bytes()]))
    hugging_face("behaviours", behaviours)


def make_tiktoken():
    trained = json.loads(train(pre_tokenizers.ByteLevel(add_prefix_space=False), size=1200).to_str())
    alphabet = {}
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    for byte in printable:
        alphabet[chr(byte)] = byte
    for extra, byte in enumerate(b for b in range(256) if b not in printable):
        alphabet[chr(256 + extra)] = byte
    ranks = {bytes(alphabet[c] for c in token): rank for token, rank in trained["model"]["vocab"].items()}
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in sorted(ranks.items(), key=lambda t: t[1])]
    (HERE / "ranks.tiktoken").write_text("\n".join(lines) + "\n")
    special = {"<|endoftext|>": 1300, "<|eot_id|>": 1301, "<tool>": 1302}
    for name, pattern in {"gpt2": GPT2, "cl100k": CL100K, "o200k": O200K, "llama3": LLAMA3, OWN: OWN}.items():
        encoding = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        label = "own" if name == OWN else name
        write_golden(
            f"tiktoken-{label}",
            {"kind": "TIKTOKEN", "path": "ranks.tiktoken", "pattern": name, "special_tokens": special},
            {"text": lambda i, e=encoding: e.encode_ordinary(string(i)),
             "special": lambda i, e=encoding: e.encode(string(i), allowed_special="all")},
            {"special": lambda ids, e=encoding: e.decode_bytes(ids)})


def make_sentencepiece():
    kinds = {
        "unigram": dict(model_type="unigram", vocab_size=800),
        "bpe": dict(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                    remove_extra_whitespaces=False, split_digits=True, user_defined_symbols=["<tool>", "\u2581\u2581"],
                    character_coverage=0.99),
        "suffix": dict(model_type="unigram", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                       treat_whitespace_as_suffix=True, user_defined_symbols=["<tool>"]),
    }
    for name, options in kinds.items():
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=training_text(200), model_writer=out,
                                                 num_threads=1, minloglevel=2, **{"character_coverage": 0.98, **options})
        path = HERE / f"{name}.model"
        path.write_bytes(out.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        write_golden(f"sentencepiece-{name}", {"kind": "SENTENCEPIECE", "path": path.name},
                     {"errors": lambda i, p=processor: p.encode(bytes_with_errors(i))},
                     {"errors": lambda ids, p=processor: p.decode(ids).encode()})


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for make in (make_hugging_face, make_tiktoken, make_sentencepiece):
        if not sys.argv[1:] or make.__name__ in sys.argv[1:]:
            make()
