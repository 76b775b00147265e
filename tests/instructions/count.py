#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Counts the instructions of small pieces of work with callgrind, and compares them with those of counts.json.

  python3 tests/instructions/count.py                 all rows; exits with 1 if one has grown by more than 3 %
  python3 tests/instructions/count.py --few           the five rows of CI
  python3 tests/instructions/count.py --where ROW     which functions the row's instructions are in; with --than BUILD,
                                                      where they are more than in another build
  python3 tests/instructions/count.py --write         writes counts.json

A row is LANGUAGE.PART.SUBJECT.HOW: python.op.linear.function is an op inside of a region that is replayed by its function,
python.backward.chain.tape the backward of a chain of ops that is replayed from a tape. Counts are per call, the same on
any machine within a percent; they are those of the LibTorch version in counts.json. Needs valgrind.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
COUNTS = HERE / "counts.json"
ROOT = HERE.parent.parent
REPEATS = 10  # as in rows.py and rows.cpp
MOST_GROWTH = 0.03
FEW = [
    "python.op.linear.function",
    "python.op.layer_norm.tape",
    "python.forward.one.function",
    "python.backward.one.function",
    "python.forward.plan.auto",
]

Functions = collections.Counter[str]


def command_of(row: str, build: pathlib.Path) -> list[str]:
    if row.startswith("cpp."):
        return [str(build / "tests" / "instruction_rows"), row]
    return [sys.executable, str(HERE / "rows.py"), str(build / "tests" / "libcallgrind_switch.so"), row]


def run(row: str, build: pathlib.Path) -> str:
    """Returns callgrind's report on a row, which runs in a process of its own, so that other rows do not change its count."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{build / 'python'}:{os.environ.get('PYTHONPATH', '')}",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out"
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", f"--callgrind-out-file={out}"]
        subprocess.run([*callgrind, *command_of(row, build)], env=environment, check=True, capture_output=True)
        return out.with_suffix(".1").read_text(errors="replace")  # the first dump; `out` itself has what came after


def count_of(report: str) -> int:
    match = re.search(r"^totals: (\d+)$", report, re.MULTILINE)
    assert match, "expected a line of totals in callgrind's report"
    return round(int(match[1]) / REPEATS)


def functions_of(report: str) -> Functions:
    """Returns the instructions per call in each function itself, without what it calls."""
    names: dict[str, str] = {}
    functions: Functions = collections.Counter()
    function = ""
    is_call = False
    for line in report.splitlines():
        if match := re.match(r"(c?)fn=\((\d+)\)(?: (.*))?$", line):
            name = names.setdefault(match[2], match[3] or "")
            if not match[1]:
                function = name
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[-+*\d]", line):
            if not is_call:
                functions[function] += int(line.split()[1])
            is_call = False
    return collections.Counter({name: round(count / REPEATS) for name, count in functions.items()})


def show_where(functions: Functions, than: Functions) -> None:
    grown = sorted(((count - than[name], name) for name, count in functions.items()), reverse=True)
    for count, name in grown[:40]:
        print(f"{count:9,}  {name[:150]}")


def compare(counts: dict[str, int], kept: dict[str, int]) -> list[str]:
    """Prints a table; returns the rows that have grown too much."""
    print(f"{'row':36} {'kept':>10} {'now':>10} {'growth':>8}")
    grown = []
    for row, count in counts.items():
        growth = count / kept[row] - 1 if row in kept else 0.0
        print(f"{row:36} {kept.get(row, 0):10,} {count:10,} {growth:8.1%}")
        if growth > MOST_GROWTH:
            grown.append(row)
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--where", metavar="ROW")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--than", type=pathlib.Path, metavar="BUILD")
    arguments = parser.parse_args()
    kept = json.loads(COUNTS.read_text())
    if arguments.where:
        than = functions_of(run(arguments.where, arguments.than)) if arguments.than else collections.Counter()
        show_where(functions_of(run(arguments.where, arguments.build)), than)
        return 0
    rows = arguments.rows or (FEW if arguments.few else list(kept["counts"]))
    counts = {row: count_of(run(row, arguments.build)) for row in rows}
    grown = compare(counts, kept["counts"])
    if arguments.write:
        kept["counts"].update(counts)
        COUNTS.write_text(json.dumps(kept, indent=2) + "\n")
        return 0
    for row in grown:
        print(f"[count] {row} has grown by more than {MOST_GROWTH:.0%}. See where: tests/instructions/count.py --where {row}")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
