# SPDX-License-Identifier: BSD-3-Clause

"""Sets of words that programs may do without. REMAT_FUZZ_WORDS: "all", "none", or names with commas; else all."""

import os

ALL = (
    "complex",
    "library",  # ops that write what their schema does not mark
    "write saved",  # ops that write what they save
    "bank",  # a buffer that is read and written in parts
    "wrappers",  # subclasses, read and written as buffers
    "made wrappers",  # that functions make
    "computing wrappers",  # whose views are none
    "host memory",  # NumPy's, which begins where LibTorch's own does not
    "modes",  # dispatch and function modes
    "hooks inside",  # pairs that are opened in functions
    "freed storages",
    "later writes",  # of buffers that an inner or another region has read
    "changes",  # functions that do something else in the replay
    "unseen writes",  # by a pointer, in ops that do not mark it
    "jagged",  # nested tensors, in programs of seeds from 200,000 on
    "writing backwards",  # of custom functions, of what they have saved
    "named functions",  # custom ones, in programs of seeds from 300,000 on
    "devices",  # on CUDA: the host, another device, streams
)


def chosen():
    text = os.environ.get("REMAT_FUZZ_WORDS") or "all"
    return frozenset(ALL if text == "all" else text.split(","))
