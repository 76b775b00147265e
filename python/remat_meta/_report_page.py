# SPDX-License-Identifier: BSD-3-Clause

"""Shows recordings as a page in browsers and notebooks."""

import html
import pathlib
import sys
import tempfile

from . import _C


def write_report(*recordings: str | pathlib.Path, page: str | pathlib.Path) -> None:
    """Writes one self-contained HTML file that shows one recording, or two on top of each other.

    Raises ValueError if a recording cannot be read or the page cannot be written. Damage in a recording is reported on stderr;
    the page shows what comes before it.
    """
    for damage in _C._write_report([str(recording) for recording in recordings], str(page)):
        print(f"[report] {damage}", file=sys.stderr)


def _frame(recorder):
    """Returns what a notebook shows for a recorder that has stopped."""
    with tempfile.TemporaryDirectory() as folder:
        page = pathlib.Path(folder) / "report.html"
        write_report(recorder.path, page=page)
        text = html.escape(page.read_text())
    return f'<iframe srcdoc="{text}" style="width: 100%; height: 700px; border: 0" title="{html.escape(recorder.path)}"></iframe>'


_C.Recorder._repr_html_ = _frame
