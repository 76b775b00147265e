# SPDX-License-Identifier: BSD-3-Clause

"""Recordings as a page for browsers, and in notebooks."""

import html
import pathlib
import sys
import tempfile

from . import _C


def write_report(*recordings: str | pathlib.Path, page: str | pathlib.Path) -> None:
    """Writes one HTML file that loads nothing else: what one recording says, or two, one over the other.

    Raises ValueError if one cannot be read or the page cannot be written. What is damaged in a recording is told on
    stderr; what comes before that is in the page.
    """
    for damage in _C._write_report([str(recording) for recording in recordings], str(page)):
        print(f"[report] {damage}", file=sys.stderr)


def _frame(recorder):
    """What a notebook shows of a recorder that has stopped."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "report.html"
        write_report(recorder.path, page=page)
        text = html.escape(page.read_text())
    return f'<iframe srcdoc="{text}" style="width: 100%; height: 700px; border: 0" title="{html.escape(recorder.path)}"></iframe>'


_C.Recorder._repr_html_ = _frame
