# SPDX-License-Identifier: BSD-3-Clause

"""python -m remat_meta SCRIPT: runs an unchanged script within a budget."""

import os
import subprocess
import sys

SCRIPT = """
import sys, torch
from torch import nn
sys.path.insert(0, sys.argv[1])
from budget_trainer import Net, batch_of, loss_of
torch.manual_seed(0)
model, criterion = Net(), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(6):
    optimizer.zero_grad()
    (loss_of(model, batch_of(seed=i)) + criterion(model.head.weight, torch.zeros(10, 32))).backward()
    optimizer.step()
print("forward" in vars(model), "forward" in vars(criterion), sum(p.double().sum() for p in model.parameters()).item())
"""


def run_python(*arguments, budget=None):
    environment = {key: value for key, value in os.environ.items() if key not in ("REMAT_MEMORY_BUDGET", "REMAT_PATCH")}
    if budget is not None:
        environment["REMAT_MEMORY_BUDGET"] = budget
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


def test_a_script_that_is_not_changed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    arguments = (str(script), os.path.dirname(os.path.abspath(__file__)))
    plain = run_python(*arguments)
    by_variable = run_python("-m", "remat_meta", *arguments, budget="60%")
    by_option = run_python("-m", "remat_meta", "--memory-budget", "60%", *arguments)
    checksum = plain.stdout.split()[2]
    assert plain.stdout.split() == ["False", "False", checksum], plain.stderr
    assert by_variable.stdout.split() == ["True", "False", checksum], by_variable.stderr
    assert by_option.stdout.split() == ["True", "False", checksum], by_option.stderr
    assert "measures" in by_variable.stderr
    assert "fits" in by_option.stderr


def test_a_script_that_is_not_there():
    finished = run_python("-m", "remat_meta", "--memory-budget", "60%", "nowhere.py")
    assert finished.returncode == 2
    assert "expected a script, got nowhere.py" in finished.stderr


def test_a_script_without_a_budget():
    finished = run_python("-m", "remat_meta", "train.py")
    assert finished.returncode == 2
    assert "expected --patch, --memory-budget, REMAT_PATCH=1 or REMAT_MEMORY_BUDGET, got none of them" in finished.stderr
