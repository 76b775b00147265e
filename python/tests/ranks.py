# SPDX-License-Identifier: BSD-3-Clause

"""Runs the checks of a module on several ranks, each check in a process group of its own."""

import datetime
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch.distributed as dist

GROUP_TIMEOUT_S = 30  # of one collective; a check that hangs ends with gloo's error
HANG_S = 600  # of all ranks


def outcome_of(check):
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


def run_here(module, rank, world, folder, names):
    """As one rank: writes what became of each check, "" if it is right."""
    checks = importlib.import_module(module).CHECKS
    store = dist.FileStore(str(folder / "store"), world)
    outcomes, seconds = {}, {}
    for name in names or checks:
        begin = time.monotonic()
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(name, store),
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S),
        )
        outcomes[name] = outcome_of(checks[name])
        # Not before the others have come here: what they wait for would be gone.
        store.set(f"{name}/{rank}", "done")
        store.wait([f"{name}/{other}" for other in range(world)], datetime.timedelta(seconds=HANG_S))
        dist.destroy_process_group()
        seconds[name] = round(time.monotonic() - begin, 2)
        (folder / f"outcomes{rank}.json").write_text(json.dumps({"outcomes": outcomes, "seconds": seconds}))


@functools.cache
def outcomes(module, world, *names):
    """By rank: what went wrong, of each check, or of those that are named."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, module, str(rank), str(world), name, *names],
                cwd=Path(__file__).parent,
                env=environment,
            )
            for rank in range(world)
        ]
        try:
            end = time.monotonic() + HANG_S
            for process in ranks:
                process.wait(max(0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # the outcomes say how far they came
        finally:
            for process in ranks:
                process.kill()
        files = [folder / f"outcomes{rank}.json" for rank in range(world)]
        return [json.loads(file.read_text())["outcomes"] if file.exists() else {} for file in files]


def assert_right(module, world, check, *names):
    """`names`: the checks that these ranks run, none for all."""
    wrong = [of.get(check, "it did not come to this check") for of in outcomes(module, world, *names)]
    assert not any(wrong), "".join(f"\nrank {rank}: {text}" for rank, text in enumerate(wrong) if text)


if __name__ == "__main__":
    run_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
    # Gloo's threads may abort the process while it ends, which is none of remat's business.
    sys.stdout.flush()
    os._exit(0)
