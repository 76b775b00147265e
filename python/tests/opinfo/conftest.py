# SPDX-License-Identifier: BSD-3-Clause

"""Prints the totals at the end of a run."""

from . import tally


def pytest_terminal_summary(terminalreporter):
    if tally.total:
        terminalreporter.write_line(tally.text())
