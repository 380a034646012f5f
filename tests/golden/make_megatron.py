#!/usr/bin/env python3
"""Writes tests/golden/megatron_*.{bin,idx}: small Megatron-LM datasets, by the layout that Megatron's own code reads.

    python3 tests/golden/make_megatron.py            # writes the files
    python3 tests/golden/make_megatron.py --check    # compares them with what it would write

Standard library only, and nothing of Telar's: the layout is packed here by hand, field by field.
"""
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).parent
CODES = {"B": 1, "b": 2, "h": 3, "i": 4, "q": 5, "f": 7, "H": 8}


def dataset(kind, documents, modes=False):
    """`documents` are lists of sequences, these lists of ids; `kind` is the struct letter of an id."""
    sequences = [sequence for document in documents for sequence in document]
    data = b"".join(struct.pack(f"<{len(s)}{kind}", *s) for s in sequences)
    size = struct.calcsize(f"<{kind}")
    index = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, CODES[kind])
    index += struct.pack("<QQ", len(sequences), len(documents) + 1)
    for sequence in sequences:
        index += struct.pack("<i", len(sequence))
    pointer = 0
    for sequence in sequences:
        index += struct.pack("<q", pointer)
        pointer += len(sequence) * size
    bound = 0
    index += struct.pack("<q", bound)
    for document in documents:
        bound += len(document)
        index += struct.pack("<q", bound)
    if modes:
        index += bytes(len(sequences))
    return data, index


# The first two have one sequence a document, as `telar data prepare` writes; the others what else may come.
FILES = {
    "megatron_u16": dataset("H", [[[5, 6, 7, 256]], [[1, 256]], [[9, 8, 65000, 256]]]),
    "megatron_i32": dataset("i", [[[100000, 65536, 2]], [[3, 2]]]),
    "megatron_u8": dataset("B", [[[1, 2, 3], [4]], [[255]]], modes=True),
    "megatron_i64": dataset("q", [[[11, 12], [13]], [], [[14, 15, 16]]]),
    "megatron_f32": dataset("f", [[[1.0, 2.0]]]),
}


def main():
    wrong = 0
    for name, (data, index) in FILES.items():
        for suffix, content in ((".bin", data), (".idx", index)):
            path = HERE / (name + suffix)
            if "--check" not in sys.argv:
                path.write_bytes(content)
            elif path.read_bytes() != content:
                print(f"{path} differs")
                wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
