# SPDX-License-Identifier: BSD-3-Clause

"""Ops that do not repeat bitwise even in plain code, or that remat refuses. A test checks that each entry is still
needed."""

import dataclasses
import re

from programs import TORCH

# Ops for which two plain runs differ, in every dtype of the op; on some processors only.
DIFFER_FROM_THEMSELVES = {
    "linalg.lstsq": "LAPACK's gels rounds by where its work memory lies",
    "linalg.lstsq.grad_oriented": "the same",
}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An error of remat where plain code runs. Empty fields match everything."""

    ops: tuple
    words: str  # a pattern in the error
    reason: str
    modes: tuple = ()
    replays: tuple = ()

    def covers(self, name, configuration):
        given = ((self.ops, name), (self.modes, configuration.mode), (self.replays, configuration.replay))
        return all(not allowed or value in allowed for allowed, value in given)

    def explains(self, result):
        return re.search(self.words, result) is not None


CHANGES_SHAPE = "op aten::[a-z_]+(.dim)?: expected in-place ops that write data only"
OUT_SHAPE = "docs/reference/limits.md, W5: the op changes the shape of a tensor from outside"
OUT_ALIAS = "docs/reference/limits.md, W4: the op asks whether two tensors share memory"

REFUSED = (
    Refusal(("lu", "svd"), CHANGES_SHAPE, OUT_SHAPE, modes=("out",)),
    Refusal(("matmul",), f"{CHANGES_SHAPE}|as in the forward, got aten::(copy_|view)", OUT_ALIAS, modes=("out",)),
    Refusal(
        ("linalg.matrix_power",),
        "as in the forward, got aten::(copy_|view)",
        OUT_ALIAS,
        modes=("out",),
        replays=("function",),
    ),
    Refusal(
        ("sparse.sampled_addmm",),
        "expected in-place ops on strided tensors from outside the region",
        "a sparse tensor from outside cannot be written",
        modes=("out",),
    ),
    Refusal(
        ("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"),
        "a tensor that is not strided",
        "docs/explanation/replay.md: no tape of sparse tensors",
        modes=("region", "nested"),
        replays=("tape",),
    ),
)

if TORCH >= (2, 15):
    REFUSED += (
        Refusal(
            ("quantile", "nanquantile"),
            "result of call 'aten::cat#.*expected a use of its shape only, got a read of its memory",
            "docs/reference/limits.md, N4: reads what a policy has kept by pointer",
            modes=("region", "nested"),
            replays=("function",),
        ),
    )


def refusal_of(name, configuration, result):
    """Returns the entry that explains the result, or None."""
    for refusal in REFUSED:
        if refusal.covers(name, configuration) and refusal.explains(result):
            return refusal
    return None
