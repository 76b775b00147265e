# SPDX-License-Identifier: BSD-3-Clause

"""Types of the public calls: a program that uses them passes `mypy --strict`, and pyright in strict mode."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import remat_meta

PROGRAM = Path(__file__).parent / "strict_program.py"
# Only the parts of torch that the program uses: all of torch takes four times as long.
CONFIGURATION = """
[mypy]
strict = True
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
[mypy-torch,torch._C.*,torch._tensor,torch._ops,torch.autograd.*,torch.nn.*,torch.types]
follow_imports = silent
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_a_program_passes_mypy_in_strict_mode(tmp_path):
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(CONFIGURATION)
    package = Path(remat_meta.__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", configuration, "--cache-dir", tmp_path / "cache", PROGRAM],
        capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(package.parent)}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("basedpyright") is None, reason="needs basedpyright")
@pytest.mark.parametrize("mistake", ["", "remat.checkpoint(region_name=3)\n"])
def test_a_program_passes_pyright_in_strict_mode(tmp_path, mistake):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text() + mistake)
    configuration = tmp_path / "pyrightconfig.json"
    package = Path(remat_meta.__file__).parent
    configuration.write_text(json.dumps({"extraPaths": [str(package.parent)], "typeCheckingMode": "strict"}))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "-p", configuration, "--pythonpath", sys.executable],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode == 0) == (not mistake), done.stdout + done.stderr
    assert ("region_name" in done.stdout) == bool(mistake)


def test_the_package_says_that_it_has_types():
    assert (Path(remat_meta.__file__).parent / "py.typed").exists()
