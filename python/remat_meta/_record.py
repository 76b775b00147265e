# SPDX-License-Identifier: BSD-3-Clause

"""Records all that a program does into a file, and shows recordings as a page in browsers and notebooks."""

import html
import os
import pathlib
import sys
import tempfile

from . import _C
from ._C import Recorder
from ._profile import let_profilers_start


def record(path: str | os.PathLike[str] | None = None, *, source_lines: bool = False) -> Recorder:
    """Writes all that the program does into a file, while open: with record("step.rec") as recording: ...

    Without a path, the file is remat-PID.rec in the current folder. source_lines records for each op the line of the
    program that called it. See Recorder.
    """
    let_profilers_start()
    return Recorder(f"remat-{os.getpid()}.rec" if path is None else os.fspath(path), source_lines=source_lines)


def write_report(*recordings: str | pathlib.Path, page: str | pathlib.Path) -> None:
    """Writes one self-contained HTML file that shows one recording, or two on top of each other.

    Raises ValueError if a recording cannot be read or the page cannot be written. Damage in a recording is reported on stderr;
    the page shows what comes before it.
    """
    for damage in _C._write_report([str(recording) for recording in recordings], str(page)):
        print(f"[report] {damage}", file=sys.stderr)


def _notebook_html(recorder):
    """Returns what a notebook shows for a recorder that has stopped."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "report.html"
        write_report(recorder.path, page=page)
        text = html.escape(page.read_text())
    return f'<iframe srcdoc="{text}" style="width: 100%; height: 700px; border: 0" title="{html.escape(recorder.path)}"></iframe>'


Recorder._repr_html_ = _notebook_html
