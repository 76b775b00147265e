# SPDX-License-Identifier: BSD-3-Clause

"""Runs the checks of modules on several ranks, each check in a process group of its own.

REMAT_RANKS_ROUNDS: how often all of them run in the same processes (default 1); see tests/python_campaign.sh.
"""

import datetime
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest
import torch.distributed as dist

HAS_GLOO = dist.is_available() and dist.is_gloo_available()
GROUP_TIMEOUT_S = 30  # limit of one collective; a check that hangs ends with gloo's error
HANG_S = 600  # limit of all ranks, for one round
ALONE_S = 10  # limit of the other ranks, after one has died
POLL_S = 0.02
ROUNDS = int(os.environ.get("REMAT_RANKS_ROUNDS", "1"))


def lines_of(text):
    """Returns the lines of a program's output, without those of gloo with torch 2.10."""
    return [line for line in text.splitlines() if not line.startswith("[Gloo]")]


def outcome_of(check):
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


def checks_of(modules):
    checks = {}
    for module in modules:
        of_module = importlib.import_module(module).CHECKS
        assert checks.keys().isdisjoint(of_module)
        checks |= of_module
    return checks


def run_here(modules, rank, world, folder, names):
    """Runs the checks as one rank; writes the outcome of each."""
    checks = checks_of(modules)
    store = dist.FileStore(str(folder / "store"), world)
    became = {name: {"wrong": "", "rounds": 0, "seconds": 0.0} for name in names or checks}
    for turn, name in itertools.product(range(ROUNDS), became):
        begin = time.monotonic()
        key = f"{turn}/{name}"
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(key, store),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S),
        )
        wrong = outcome_of(checks[name])
        # Waits until the others have come here, since they may need this rank's store.
        store.set(f"{key}/{rank}", "done")
        store.wait([f"{key}/{other}" for other in range(world)], datetime.timedelta(seconds=HANG_S))
        dist.destroy_process_group()
        check = became[name]
        check["wrong"] = check["wrong"] or (wrong and f"in round {turn}: {wrong}")
        check["rounds"] = turn + 1
        check["seconds"] = round(time.monotonic() - begin, 2)
        (folder / f"{rank}.json").write_text(json.dumps(became))


def wait_for(ranks):
    """Waits until all ranks have ended, or for too long: their files show how far they came. If one has died, the others wait in
    vain."""
    end = time.monotonic() + HANG_S * ROUNDS
    while any(process.poll() is None for process in ranks) and time.monotonic() < end:
        died = [(rank, process.returncode) for rank, process in enumerate(ranks) if process.returncode not in (None, 0)]
        if died:
            print("rank {} has died with status {}".format(*died[0]))
            end = min(end, time.monotonic() + ALONE_S)
        time.sleep(POLL_S)


@functools.cache
def run(modules, world, *names):
    """Runs all checks, or those that are named. Returns the outcomes of each rank."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, ",".join(modules), str(rank), str(world), name, *names],
                cwd=Path(__file__).parent,
                env=environment,
            )
            for rank in range(world)
        ]
        try:
            wait_for(ranks)
        finally:
            for process in ranks:
                process.kill()
        files = [folder / f"{rank}.json" for rank in range(world)]
        return [json.loads(file.read_text()) if file.exists() else {} for file in files]


def fault_of(check):
    """Returns the fault of a check on one rank: "" if it was right in every round."""
    if check["wrong"] or check["rounds"] == ROUNDS:
        return check["wrong"]
    return f"expected {ROUNDS} rounds, got {check['rounds']}"


def assert_right(modules, world, check, *names):
    """Checks that `check` was right on all ranks. `names`: the checks that these ranks run; none for all."""
    faults = [fault_of(of[check]) if of else "it did not begin" for of in run(modules, world, *names)]
    assert not any(faults), "".join(f"\nrank {rank}: {text}" for rank, text in enumerate(faults) if text)


def made_test(modules, world):
    names = [name for module in modules for name in importlib.import_module(module).ON_RANKS[world]]

    @pytest.mark.parametrize("check", names)
    def test(check):
        assert_right(modules, world, check, *names)

    return test


def tests_of(*modules):
    """Returns a test for two ranks and one for four of the checks that these modules have in ON_RANKS; each launches its ranks
    once."""
    if not HAS_GLOO:
        pytest.skip("needs gloo", allow_module_level=True)
    return made_test(modules, 2), made_test(modules, 4)


if __name__ == "__main__":
    run_here(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
    # Gloo's threads may abort the process at its end, which is not remat's fault.
    sys.stdout.flush()
    os._exit(0)
