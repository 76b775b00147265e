# SPDX-License-Identifier: BSD-3-Clause

"""Programs that the C++ fuzzer prints as Python run, and give the same with and without remat.

REMAT_FUZZ_PROGRAM: the C++ fuzzer.
"""

import os
import runpy
import subprocess

import pytest

pytestmark = pytest.mark.torch_warns
FUZZER = os.environ.get("REMAT_FUZZ_PROGRAM", "")


def printed(path, seed):
    environment = {**os.environ, "REMAT_FUZZ_PRINT": str(path)}
    if seed is not None:
        environment["REMAT_FUZZ_SEED"] = str(seed)
    subprocess.run([FUZZER, "[.print]"], env=environment, check=True, capture_output=True)
    return path


@pytest.mark.skipif(not FUZZER, reason="REMAT_FUZZ_PROGRAM is not set")
# Program 1 raises, with and without remat.
@pytest.mark.parametrize("seed", [None, 0, *range(2, 9)], ids=lambda seed: "everything" if seed is None else seed)
def test_printed_programs_are_bitwise_plain(tmp_path, seed):
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(printed(tmp_path / "printed.py", seed)))
    assert ended.value.code == 0
