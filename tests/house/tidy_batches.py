#!/usr/bin/env python3
"""Sources that one clang-tidy can look at together: most of its time goes into the headers of the standard library.

    tidy_batches.py BUILD OUT FILE...

Writes OUT/NAME.cc, which includes up to a dozen of the FILEs of one folder that are compiled alike, and
OUT/compile_commands.json with the command that BUILD's has for them. Prints a line a batch: its path, then its files.
"""
import collections
import json
import pathlib
import re
import sys

MOST = 12


def main():
    build, out, *files = sys.argv[1:]
    root, out = pathlib.Path.cwd(), pathlib.Path(out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    wanted, groups = {str(root / file) for file in files}, collections.defaultdict(list)
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        if entry["file"] in wanted:
            wanted.discard(entry["file"])  # A file that two targets compile is looked at once.
            alike = re.sub(r" -o \S+ -c \S+$", "", entry["command"])
            groups[str(pathlib.Path(entry["file"]).parent), alike].append(entry["file"])
    commands = []
    for number, ((folder, command), members) in enumerate(sorted(groups.items())):
        for first in range(0, len(members), MOST):
            batch = sorted(members)[first:first + MOST]
            path = out / f"{pathlib.Path(folder).relative_to(root)}-{number}-{first}.cc".replace("/", ".")
            path.write_text("".join(f'#include "{member}"  // NOLINT(bugprone-suspicious-include)\n' for member in batch))
            commands.append({"directory": str(root / build), "file": str(path), "command": f"{command} -c {path}"})
            print(path, *batch)
    (out / "compile_commands.json").write_text(json.dumps(commands, indent=1))


main()
