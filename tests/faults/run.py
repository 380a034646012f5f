"""Runs all tests here, several at once, as they wait much and compute little. Prints what failed, and the figures.

    run.py [JOBS [PATTERN]]    JOBS at once, 6 by default; only tests whose name has PATTERN in it

Without PATTERN those of LONG are left out, unless TELAR_FAULTS_ALL=1: what they show, a shorter one shows in part.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
LONG = ("test_clock.ClockTest.test_back_off", "test_disk.CheckpointTest.test_it_goes_on_without_saving_and_tells",
        "test_partition.PartitionTest.test_ranks_that_do_not_reach_each_other",
        "test_partition.PartitionTest.test_a_slow_and_lossy_network")


def all_tests(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from all_tests(one)
        else:
            yield one.id()


def run(name):
    module, test = name.split(".", 1)
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-W", "error", HERE / f"{module}.py", "-v", test], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    return name, done.returncode, time.monotonic() - start, done.stdout


def main():
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    pattern = sys.argv[2] if len(sys.argv) > 2 else ""
    sys.path.insert(0, str(HERE))
    names = [name for name in all_tests(unittest.defaultTestLoader.discover(str(HERE), "test_*.py")) if pattern in name]
    if not pattern and os.environ.get("TELAR_FAULTS_ALL") != "1":
        names = [name for name in names if not name.startswith(LONG)]
    names.sort(key=lambda name: "Killed" not in name)  # The longest first.
    failed, figures, start = [], {}, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, code, seconds, output in pool.map(run, names):
            skipped = re.search(r"skipped ['\"](.*)['\"]$", output, re.MULTILINE) if code == 0 else None
            print(f"{'ok    ' if code == 0 else 'FAILED'} {seconds:6.1f} s  {name}{' skipped: ' + skipped[1] if skipped else ''}",
                  flush=True)
            if code != 0:
                failed.append(name)
                print(output, flush=True)
            for figure, value, unit in re.findall(r"FIGURE (.*): ([0-9.]+) (s|steps) at time scale", output):
                figures[figure] = max((float(value), unit), figures.get(figure, (0, unit)))
    for figure, (value, unit) in sorted(figures.items()):
        print(f"FIGURE {figure}: {value:g} {unit}")
    print(f"{len(names)} tests, {len(failed)} failed, {time.monotonic() - start:.0f} s")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main())
