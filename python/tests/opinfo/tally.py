# SPDX-License-Identifier: BSD-3-Clause

"""How many cases of this process ended how."""

import collections

from .tables import refusal_of

FINE = ("same", "skipped", "raises")

total = collections.Counter()


def end_of(name, configuration, result):
    """What harness.check() says, in one word."""
    if result in FINE:
        return result
    return "refused" if refusal_of(name, configuration, result) else "failed"


def add(ends):
    total.update(ends)


def text():
    return "op samples: " + ", ".join(f"{total[end]} {end}" for end in (*FINE, "refused", "failed"))
