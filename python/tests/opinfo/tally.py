# SPDX-License-Identifier: BSD-3-Clause

"""Counts how the cases of this process ended."""

import collections

from .tables import refusal_of

FINE = ("same", "skipped", "raises")

total = collections.Counter()


def end_of(name, configuration, result):
    """Returns the result of harness.check() as one word."""
    if result in FINE:
        return result
    return "refused" if refusal_of(name, configuration, result) else "failed"


def add(ends):
    total.update(ends)


def text():
    return "op samples: " + ", ".join(f"{total[end]} {end}" for end in (*FINE, "refused", "failed"))
