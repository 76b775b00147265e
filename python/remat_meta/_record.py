# SPDX-License-Identifier: BSD-3-Clause

"""Records all that a program does into a file."""

import os

from . import _report_page, _torch_profiler  # noqa: F401  the first makes notebooks show recorders
from ._C import Recorder


def record(path: str | os.PathLike[str] | None = None, *, source_lines: bool = False) -> Recorder:
    """Writes all that the program does into a file, while open: with record("step.rec") as recording: ...

    Without a path, the file is remat-PID.rec in the current folder. source_lines records for each op the line of the
    program that called it. See Recorder.
    """
    _torch_profiler.let_it_start()
    return Recorder(f"remat-{os.getpid()}.rec" if path is None else os.fspath(path), source_lines=source_lines)
