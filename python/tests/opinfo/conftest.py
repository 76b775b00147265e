# SPDX-License-Identifier: BSD-3-Clause

"""Ends a run with its sums."""

from . import tally


def pytest_terminal_summary(terminalreporter):
    if tally.total:
        terminalreporter.write_line(tally.text())
