# SPDX-License-Identifier: BSD-3-Clause

"""The mutants of mutants.toml, and a check that each still fits its file: python3 tests/mutants/mutant_list.py"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("placeholder", "policy", "planner", "recording", "engine", "tape", "forward", "backend", "inspect", "budget", "offload")
LEAST = 45
SUITES = (ROOT / "tests" / "CMakeLists.txt").read_text()


@dataclass(frozen=True)
class Mutant:
    breaks: str  # the broken property, which is the mutant's name
    file: str
    old: str
    new: str
    suites: tuple[str, ...]  # suites that should turn red, the cheapest first

    def applied(self, source: str) -> str:
        return source.replace(self.old, self.new)


def read_mutants() -> list[Mutant]:
    with open(Path(__file__).with_name("mutants.toml"), "rb") as file:
        entries = tomllib.load(file)["mutant"]
    return [Mutant(**{**entry, "suites": tuple(entry["suites"])}) for entry in entries]


def fault_of(mutant: Mutant) -> str | None:
    path = ROOT / mutant.file
    if path.suffix != ".cpp" or mutant.file.split("/")[0] not in MODULES:
        return "expected a .cpp of the library: tests do not see a changed header"
    if not path.is_file():
        return "expected a file, got none"
    count = path.read_text().count(mutant.old)
    if count != 1:
        return f"expected its old text once in the file, got it {count} times"
    if mutant.old == mutant.new or not mutant.suites:
        return "expected a new text that differs, and a suite that should see it"
    for suite in mutant.suites:
        if not is_suite(suite):
            return f"expected suites of tests/CMakeLists.txt, got {suite}"
    return None


def is_suite(name: str) -> bool:
    """True if CMake has a suite of that name. Suites of a loop are numbered, or named for an order of streams; a run on CUDA
    tensors is named for its suite."""
    if run := re.fullmatch(r"(.+)\.cuda(?:\.(\w+))?", name):
        suite, order = run.groups()
        order = f"[^)]* ORDER {order}" if order else "(?![^)]* ORDER )"
        return bool(re.search(rf"remat_add_cuda_run\({re.escape(suite)} {order}", SUITES))
    names = (re.sub(r"\.\d+$", "", name), re.sub(r"\.[^.]+$", ".${order}", name))
    return any(re.search(rf"(?<![\w.]){re.escape(known)}(?![\w])", SUITES) for known in names)


def faults_of(mutants: list[Mutant]) -> list[str]:
    faults = [f"[mutants] '{m.breaks}' ({m.file}): {fault}." for m in mutants if (fault := fault_of(m))]
    names = [mutant.breaks for mutant in mutants]
    faults += [f"[mutants] '{name}': expected each name once." for name in sorted(set(names)) if names.count(name) > 1]
    if len(mutants) < LEAST:
        faults.append(f"[mutants] expected {LEAST} mutants or more, got {len(mutants)}.")
    return faults


def main() -> int:
    mutants = read_mutants()
    faults = faults_of(mutants)
    for fault in faults:
        print(fault, "Correct tests/mutants/mutants.toml.")
    print(f"{len(mutants)} mutants, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
