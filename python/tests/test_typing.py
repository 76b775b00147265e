# SPDX-License-Identifier: BSD-3-Clause

"""The types of the public calls: a program that uses them passes `mypy --strict`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import remat_meta

PROGRAM = Path(__file__).parent / "strict_program.py"
# Of torch what the program uses: all of it takes four times as long.
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


def test_the_package_says_that_it_has_types():
    assert (Path(remat_meta.__file__).parent / "py.typed").exists()
