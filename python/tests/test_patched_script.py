# SPDX-License-Identifier: BSD-3-Clause

"""python -m remat_meta --patch SCRIPT: runs an unchanged script with its checkpoints on remat."""

import argparse
import os
import subprocess
import sys

import pytest
import ranks
import torch
import torch.utils.checkpoint as stock

import remat_meta as remat
from remat_meta.__main__ import complete_from_environment, parser_of_runs
from remat_meta._C import live_region_count
from remat_meta._torch_checkpoint import _Patch, torch_checkpoint

SCRIPT = """
import os, sys
import torch
from torch.utils.checkpoint import checkpoint
from remat_meta import patch_torch_checkpoint
from remat_meta._C import live_region_count

if "patch" in sys.argv:
    patch_torch_checkpoint()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
x = torch.ones(2, 4)
y = model(x) if "plain" in sys.argv else checkpoint(model, x, use_reentrant=False)
sys.stdout.write(f"{__name__} {sys.argv[1:]} regions {live_region_count()}\\n")  # at once: ranks share it
y.sum().backward()
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train_here.py"
    path.write_text(SCRIPT)
    return path


def run_python(*arguments, cwd=None, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("REMAT_")} | variables
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment, cwd=cwd, timeout=300
    )


@pytest.mark.parametrize("argument", ["calls", "patch"])
def test_the_checkpoints_of_a_script_run_on_remat(script, argument):
    done = run_python("-m", "remat_meta", "--patch", script, argument, "--lr", "1")
    assert done.stdout == f"__main__ ['{argument}', '--lr', '1'] regions 1\n", done.stderr
    assert "nothing ran on remat" not in done.stderr


def test_a_module_without_checkpoints_is_told_of(script):
    done = run_python("-m", "remat_meta", "-m", "train_here", "plain", cwd=script.parent, REMAT_PATCH="1")
    assert done.stdout == "__main__ ['plain'] regions 0\n", done.stderr
    assert "train_here: nothing ran on remat: torch.utils.checkpoint.checkpoint was not called" in done.stderr


def test_the_variable_alone_changes_nothing(script):
    done = run_python(script, REMAT_PATCH="1")
    assert done.stdout == "__main__ [] regions 0\n", done.stderr


def test_each_rank_of_torchrun_runs_on_remat(script):
    done = run_python("-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "remat_meta", "--patch", script, "x")
    assert ranks.lines_of(done.stdout) == ["__main__ ['x'] regions 1"] * 2, done.stderr


def given(monkeypatch, *arguments, **variables):
    for name in ("REMAT_PATCH", "REMAT_MEMORY_BUDGET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parser = parser_of_runs()
    options = parser.parse_args([*arguments, "train.py"])
    complete_from_environment(parser, options)
    return options.patch, options.memory_budget


def test_options_come_before_variables(monkeypatch):
    assert given(monkeypatch, "--patch", REMAT_MEMORY_BUDGET="60%") == (True, None)
    assert given(monkeypatch, "--memory-budget", "8GB", REMAT_PATCH="1") == (False, "8GB")
    assert given(monkeypatch, REMAT_PATCH="1") == (True, None)
    assert given(monkeypatch, REMAT_PATCH="0", REMAT_MEMORY_BUDGET="60%") == (False, "60%")


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        ((), {"REMAT_PATCH": "yes"}, "REMAT_PATCH: expected 1 or 0, got 'yes'"),
        ((), {"REMAT_PATCH": "0"}, "expected --patch, --memory-budget, REMAT_PATCH=1 or REMAT_MEMORY_BUDGET, got none"),
        (("--patch", "--memory-budget", "8GB"), {}, "expected --patch or --memory-budget .* got both: a budget plans steps"),
        ((), {"REMAT_PATCH": "1", "REMAT_MEMORY_BUDGET": "8GB"}, "got both"),
    ],
)
def test_what_cannot_be_run_so_is_an_error(monkeypatch, arguments, variables, text):
    def raise_it(parser, message):
        raise ValueError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", raise_it)
    with pytest.raises(ValueError, match=text):
        given(monkeypatch, *arguments, **variables)


def test_a_patch_inside_keeps_the_replacement_of_the_one_around():
    calls = []

    def replacement(*args, **kwargs):
        calls.append(1)
        return torch_checkpoint(*args, **kwargs)

    with _Patch(replacement), remat.patch_torch_checkpoint():
        y = stock.checkpoint(torch.sin, torch.ones(2, requires_grad=True))
        assert live_region_count() == 1
    assert calls == [1]
    y.sum().backward()


LATE = """
import atexit, pickle, threading, time, torch
from torch.utils.checkpoint import checkpoint
from remat_meta._C import live_region_count

class Mine:
    pass

def late():
    threading.main_thread().join()
    x = torch.ones(3, requires_grad=True)
    y = checkpoint(torch.sin, x, use_reentrant=False)
    print(type(pickle.loads(pickle.dumps(Mine()))).__module__, "regions", live_region_count())

threading.Thread(target=late).start()
atexit.register(lambda: print("at exit", type(pickle.loads(pickle.dumps(Mine()))).__module__))
"""


def test_what_a_script_leaves_running_finds_its_module(tmp_path):
    path = tmp_path / "late.py"
    path.write_text(LATE)
    done = run_python("-m", "remat_meta", "--patch", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ regions 1\nat exit __main__\n"
    assert "nothing ran on remat" not in done.stderr


@pytest.mark.parametrize(("arguments", "text"), [
    (["--patch"], "expected a script, got none"),
    (["--patch", "-m"], "expected the name of a module, got none"),
    (["--patch", "-m", "no_such_module"], "No module named no_such_module"),
])  # fmt: skip
def test_a_script_that_is_not_there_is_said_in_a_line(arguments, text):
    done = run_python("-m", "remat_meta", *arguments)
    assert done.returncode and text in done.stderr and "Traceback" not in done.stderr


def test_a_folder_with_a_main_is_run(tmp_path):
    (tmp_path / "__main__.py").write_text("import beside, sys\nprint(__name__, beside.value, sys.argv[1:])\n")
    (tmp_path / "beside.py").write_text("value = 3\n")
    assert run_python("-m", "remat_meta", "--patch", tmp_path, "a").stdout == "__main__ 3 ['a']\n"
