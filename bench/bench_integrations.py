#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the scripts of examples/integrations with remat and with torch's checkpoint, and compares bits, peaks and times.

  bench_integrations.py [SCRIPT ...] [--rounds N]

Each script runs without a checkpoint, with torch's, and with remat, in turns, on one thread. "bitwise" compares the weights,
buffers and generator after training with those without a checkpoint. A peak counts the bytes that the CPU allocator hands out
in the last batch, beyond those alive between two backward passes. That batch adds its gradients to existing ones. A time is
the CPU time from one backward pass to the next, divided by that without a checkpoint, each the median of all rounds.
Scripts whose packages are missing are left out.
"""

import contextlib
import importlib.util
import io
import logging
import pathlib
import statistics
import sys
import warnings

from peers import parser_of, print_heads, print_row

TESTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "models")]

from harness import first_difference  # noqa: E402
from integrations import NEEDS, SCRIPTS, run  # noqa: E402

MODES = ("plain", "torch", "remat")
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
HEADS = ("script", "regions", "bitwise: torch", "remat", "peak: plain", "torch", "remat", "time: torch", "remat")


def run_quietly(script, mode):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(script, mode)


def row(script, rounds):
    runs = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES[number % 3 :] + MODES[: number % 3]:
            runs[mode].append(run_quietly(script, mode))
    plain = runs["plain"][0]
    peaks = {mode: runs[mode][-1].peaks[-1] for mode in MODES}
    times = {mode: statistics.median(second for done in runs[mode] for second in done.seconds[2:]) for mode in MODES}
    same = {mode: all(first_difference(plain.state, done.state) is None for done in runs[mode]) for mode in MODES}
    assert same["plain"], f"{script}: a plain run differs from another"
    return [
        script,
        f"{min(runs['remat'][0].regions)}",
        *("yes" if same[mode] else "no" for mode in ("torch", "remat")),
        f"{peaks['plain'] / 1e6:.1f} MB",
        *(f"{100 * peaks[mode] / peaks['plain']:.0f} %" for mode in ("torch", "remat")),
        *(f"{times[mode] / times['plain']:.2f}" for mode in ("torch", "remat")),
    ]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print_heads(HEADS)
    for script in given.scripts or NAMES:
        missing = [name for name in NEEDS.get(script, ()) if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{script}: left out, needs {', '.join(missing)}", file=sys.stderr)
        else:
            print_row(row(script, given.rounds))


if __name__ == "__main__":
    main()
