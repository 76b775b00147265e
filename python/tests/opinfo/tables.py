# SPDX-License-Identifier: BSD-3-Clause

"""Ops for which "bitwise as plain" means nothing, or which remat refuses. Each entry is tested to
still belong here."""

# Two plain runs differ.
DIFFER_FROM_THEMSELVES = {
    "linalg.lstsq": "LAPACK's gels rounds by where its work memory lies",
    "linalg.lstsq.grad_oriented": "the same",
}

CHANGES_SHAPE = "op aten::[a-z_]+(.dim)?: expected in-place ops that write data only"

# (mode, op): what the error says. These out= variants change the shape of a tensor from outside
# inside of an op, or ask there whether two tensors share memory (Tensor::is_alias_of), which is
# answered otherwise for a shadow.
REFUSED = {
    ("out", "lu"): CHANGES_SHAPE,
    ("out", "svd"): CHANGES_SHAPE,
    ("out", "matmul"): f"{CHANGES_SHAPE}|as in the forward, got aten::(copy_|view)",
    ("out", "linalg.matrix_power"): "as in the forward, got aten::(copy_|view)",
}

# Why a tape cannot be written, in the words of the error. docs/replay.md has the reasons.
NO_TAPE = {
    "sparse.sampled_addmm": "a tensor that is not strided",
    "sparse.mm.reduce": "a tensor that is not strided",
    "to_sparse": "a tensor that is not strided",
}
