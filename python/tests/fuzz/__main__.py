# SPDX-License-Identifier: BSD-3-Clause

"""python -m fuzz --seed 0 --count 1000 [--shard i/n]: fuzzes, prints a minimal program per fault."""

import argparse
import sys

from .campaign import report, run_many


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program's (default 0)")
    parser.add_argument("--count", type=int, default=1000, help="programs in all (default 1000)")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th of them, from the i-th on")
    parser.add_argument("--source", action="store_true", help="print the first program and stop")
    parser.add_argument("--budgets", action="store_true", help="run them within random budgets")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))
    seeds = range(options.seed + shard, options.seed + options.count, shards)
    if options.source:
        from .generator import Generator

        print(Generator(seeds[0]).program().source())
        return 0
    if options.budgets:
        from .budget import planned_share, report_of_budgets, run_in_budgets

        counts, faults = run_in_budgets(seeds)
        print(report_of_budgets(counts, faults))
        return 0 if not faults and planned_share(counts) > 0.5 else 1
    summary = run_many(seeds)
    print(report(summary))
    return 0 if summary.passed else 1


if __name__ == "__main__":
    sys.exit(main())
