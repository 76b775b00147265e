# SPDX-License-Identifier: BSD-3-Clause

"""python -m remat_meta: prints versions and the state of the device, and runs a self-test.

python -m remat_meta --patch SCRIPT [ARGUMENT ...]: runs a training script whose calls of torch.utils.checkpoint run on
remat; REMAT_PATCH=1 does the same.

python -m remat_meta --memory-budget BUDGET SCRIPT [ARGUMENT ...]: runs a script within a memory budget for each model that
it trains; REMAT_MEMORY_BUDGET=BUDGET does the same.

After -m, SCRIPT is the name of a module, as for python.
"""

import argparse
import logging
import os
import platform
import sys

import torch

import remat_meta as remat
from remat_meta._build_info import TORCH_VERSION
from remat_meta._launch import check_budget, run_patched, run_within_budget
from remat_meta.testing import assert_bitwise_equal


def device_state() -> str:
    """Says which library has taken torch's spare device, PrivateUse1."""
    name = torch._C._get_privateuse1_backend_name()
    if name == "remat_meta":
        return "remat_meta is registered"
    if name != "privateuseone":
        return f"taken by {name!r}: register_device() will refuse, checkpoints work"
    if torch.accelerator.device_count() > 0:
        beside = torch.accelerator.current_accelerator().type
        return f"free: register_device() refuses beside {beside}, checkpoints work"
    return "free: register_device() makes it remat_meta"


def self_test() -> str:
    """Trains one step plainly and checkpointed. Raises AssertionError if a bit differs."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Dropout(0.5))
    assert_bitwise_equal(model, torch.randn(4, 8, requires_grad=True), loss=lambda output: output.sin().sum())
    return "passed: results, gradients and buffers of a step bitwise equal to plain"


def show_state() -> int:
    print(f"remat_meta {remat.__version__}, compiled for torch {TORCH_VERSION}")
    print(f"torch      {torch.__version__} in {torch.__path__[0]}")
    print(f"python     {platform.python_version()} in {sys.prefix}")
    print(f"device     {device_state()}")
    try:
        print(f"self-test  {self_test()}")
    except Exception as error:
        print(f"self-test  failed: {error}")
        return 1
    return 0


def log_to_stderr() -> None:
    """Shows remat's log messages on stderr, even if the script does not set up logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("remat_meta")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def parser_of_runs() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m remat_meta",
        description="Without arguments: versions and a self-test. With a script: runs it, on remat.",
    )
    parser.add_argument(
        "--patch", action="store_true", help="what calls torch.utils.checkpoint runs on remat; so does REMAT_PATCH=1"
    )
    parser.add_argument(
        "--memory-budget",
        metavar="BUDGET",
        help='for each model that it trains: "8GB", "60%%" of the peak without remat, "device:16GB"; else what '
        "REMAT_MEMORY_BUDGET says",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module, as for python -m")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER)
    return parser


def complete_from_environment(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Takes both options from the environment if neither is given."""
    if not given.patch and not given.memory_budget:
        patch = os.environ.get("REMAT_PATCH", "")
        if patch not in ("", "0", "1"):
            parser.error(f"REMAT_PATCH: expected 1 or 0, got {patch!r}")
        given.patch = patch == "1"
        given.memory_budget = os.environ.get("REMAT_MEMORY_BUDGET")
    if given.patch and given.memory_budget:
        parser.error(
            "expected --patch or --memory-budget (REMAT_PATCH or REMAT_MEMORY_BUDGET), got both: a budget plans steps that have "
            "no checkpoints. Turn those of the script off and give a budget, or leave the budget out"
        )
    if not given.patch and not given.memory_budget:
        parser.error("expected --patch, --memory-budget, REMAT_PATCH=1 or REMAT_MEMORY_BUDGET, got none of them")


def main() -> int:
    if len(sys.argv) == 1:
        return show_state()
    parser = parser_of_runs()
    given = parser.parse_args()
    complete_from_environment(parser, given)
    if given.memory_budget:
        try:
            check_budget(given.memory_budget)
        except ValueError as error:
            parser.error(str(error).partition(": ")[2])
    if given.script is None:
        parser.error("expected the name of a module, got none" if given.is_module else "expected a script, got none")
    if given.is_module:
        sys.path[0] = os.getcwd()
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(given.script))
        if not os.path.exists(given.script):
            parser.error(f"expected a script, got {given.script}, which is not there")
    sys.argv = [given.script, *given.arguments]
    log_to_stderr()
    if given.patch:
        run_patched(given.script, given.is_module)
    else:
        run_within_budget(given.script, given.is_module, given.memory_budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
