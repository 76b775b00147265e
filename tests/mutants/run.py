# SPDX-License-Identifier: BSD-3-Clause

"""Breaks the library in the small ways of mutants.toml, one by one, and says which suite turns red.

    python3 tests/mutants/run.py [--only TEXT] [--shard i/n] [--list | --table]

Needs the tests built in build/release. The libraries are built separately, from a copy of the sources; the unchanged
tests load them by LD_LIBRARY_PATH. A red test counts if it is green with the unbroken libraries right after. Finished
mutants are in build/mutants/results.tsv and are skipped as long as the library and the suite that saw them stay the
same. Exits with 1 if a mutant survives all suites.
"""

import argparse
import hashlib
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from libraries import DoesNotCompile, Libraries
from mutant_list import MODULES, ROOT, Mutant, faults_of, read_mutants
from suites import Suite, check_overridden, read_suites

BUILD = ROOT / "build" / "release"
WORK = ROOT / "build" / "mutants"
RESULTS = WORK / "results.tsv"


@dataclass(frozen=True)
class Result:
    breaks: str
    mutant: str  # hashes: of the mutant, of the library's sources, of the suite that turned red
    sources: str
    suite_hash: str
    suite: str  # empty: the mutant survived
    case: str
    seconds: str  # time of all that was run, and of the compiler

    def write(self) -> None:
        with open(RESULTS, "a") as file:
            print(*vars(self).values(), sep="\t", file=file)


def read_results() -> dict[str, Result]:
    """Returns the last result of each mutant."""
    if not RESULTS.exists():
        return {}
    rows = [line.split("\t") for line in RESULTS.read_text().splitlines()]
    return {row[0]: Result(*row) for row in rows}


def hash_of(*texts: str | bytes) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text if isinstance(text, bytes) else text.encode())
    return digest.hexdigest()[:12]


def hash_of_mutant(mutant: Mutant) -> str:
    return hash_of(mutant.file, mutant.old, mutant.new)


def hash_of_sources() -> str:
    files = [file for part in ("include", *MODULES) for file in (ROOT / part).rglob("*") if file.suffix in (".cpp", ".h")]
    return hash_of(*[part for file in sorted(files) for part in (str(file.relative_to(ROOT)), file.read_bytes())])


class Campaign:
    def __init__(self, folder: Path):
        self.suites = read_suites(BUILD)
        self.libraries = Libraries(folder, BUILD)
        self.sources = hash_of_sources()
        self.done = read_results()
        self.libraries.build()
        self.libraries.keep_unbroken()
        for program in [self._any_catch_program(), *BUILD.glob("python/remat_meta/_C.*.so")]:
            check_overridden(program, self.libraries.output)

    def run(self, mutants: list[Mutant]) -> list[Mutant]:
        """Runs the suites on each mutant; returns the survivors."""
        self._check_unbroken(mutants)
        survivors = []
        for number, mutant in enumerate(mutants, 1):
            result = self._finished(mutant) or self._try(mutant)
            what = f"{result.suite}: {result.case}" if result.suite else "SURVIVED"
            print(f"[{number}/{len(mutants)}] {mutant.breaks}: {what} ({result.seconds} s)", flush=True)
            if not result.suite:
                survivors.append(mutant)
        return survivors

    def _any_catch_program(self) -> str:
        return next(suite.command[0] for suite in self.suites.values() if suite.is_catch)

    def _check_unbroken(self, mutants: list[Mutant]) -> None:
        """Checks that the suites that are to turn red are green without a mutant."""
        first = dict.fromkeys(name for mutant in mutants if not self._finished(mutant) for name in mutant.suites)
        for name in first:
            if name not in self.suites:
                raise SystemExit(f"[mutants] expected the suite {name} in {BUILD}, got none. Build the tests.")
            outcome = self.suites[name].run(self.libraries.unbroken)
            print(f"[unbroken] {name}: {'RED, ' + outcome.case if outcome.red else 'green'} ({outcome.seconds:.0f} s)",
                  flush=True)
            if outcome.red:
                raise SystemExit(f"[mutants] {name}: expected it green without a mutant. Build and correct it first.")
            # Detects a mutant that never ends long before the suite's own limit.
            limit = min(self.suites[name].timeout_s, 60 + 20 * outcome.seconds)
            self.suites[name] = replace(self.suites[name], timeout_s=limit)

    def _finished(self, mutant: Mutant) -> Result | None:
        result = self.done.get(mutant.breaks)
        suite = self.suites.get(result.suite) if result else None
        if not suite or result.mutant != hash_of_mutant(mutant) or result.sources != self.sources:
            return None
        return result if result.suite_hash == suite.fingerprint() else None

    def _try(self, mutant: Mutant) -> Result:
        start = time.monotonic()
        suite, case = None, ""
        try:
            with self.libraries.broken_by(mutant):
                suite, case = self._first_red(mutant)
        except DoesNotCompile as error:
            print(f"[mutants] {mutant.breaks}: expected it to compile, got:\n{error}")
        result = Result(mutant.breaks, hash_of_mutant(mutant), self.sources, suite.fingerprint() if suite else "",
                        suite.name if suite else "", case, f"{time.monotonic() - start:.0f}")
        result.write()
        return result

    def _first_red(self, mutant: Mutant) -> tuple[Suite | None, str]:
        others = [name for name in self.suites if name not in mutant.suites]
        for suite in [self.suites[name] for name in (*mutant.suites, *others)]:
            outcome = suite.run(self.libraries.output)
            if not outcome.red:
                continue
            if not suite.run(self.libraries.unbroken, outcome.case).red:
                return suite, outcome.case
            print(f"[mutants] {suite.name}, '{outcome.case}': red without the mutant too, not counted", flush=True)
        return None, ""


def table(mutants: list[Mutant]) -> str:
    results = read_results()
    rows = ["| what no longer holds | file | red first | s |", "|---|---|---|---|"]
    for mutant in mutants:
        result = results.get(mutant.breaks)
        if not result or result.mutant != hash_of_mutant(mutant):
            rows.append(f"| {mutant.breaks} | `{mutant.file}` | not run | |")
            continue
        case = result.case.split("/")[-1].replace("|", "\\|")
        red = f"`{result.suite}`: {case}" if result.suite else "**nothing**"
        rows.append(f"| {mutant.breaks} | `{mutant.file}` | {red} | {result.seconds} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants whose name or file has this text")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th of them, from the i-th on")
    parser.add_argument("--list", action="store_true", help="print their names and stop")
    parser.add_argument("--table", action="store_true", help="print what is known as a table and stop")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))
    mutants = [m for m in read_mutants() if options.only in m.breaks or options.only in m.file][shard::shards]
    if faults := faults_of(read_mutants()):
        raise SystemExit("\n".join(faults))
    if options.list:
        print(*[f"{mutant.file}: {mutant.breaks}" for mutant in mutants], sep="\n")
        return 0
    if options.table:
        print(table(mutants))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # raises, so that no suite is left running
    survivors = Campaign(WORK / str(shard)).run(mutants)
    print(f"[mutants] {len(mutants) - len(survivors)} of {len(mutants)} turned a suite red")
    for mutant in survivors:
        print(f"[mutants] survived: {mutant.breaks} ({mutant.file})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
