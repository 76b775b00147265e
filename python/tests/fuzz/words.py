# SPDX-License-Identifier: BSD-3-Clause

"""Sets of steps that programs may leave out. REMAT_FUZZ_WORDS: "all", "none", or names separated by commas; default all."""

import os

ALL = (
    "complex",
    "library",  # ops that write arguments which their schema does not mark
    "write saved",  # ops that write a tensor that they save
    "bank",  # a buffer that is read and written in parts
    "wrappers",  # tensor subclasses, read and written as buffers
    "made wrappers",  # wrappers that functions make
    "computing wrappers",  # wrappers whose views compute
    "host memory",  # NumPy's memory, which begins at other addresses than LibTorch's
    "modes",  # dispatch and function modes
    "hooks inside",  # pairs of hooks that functions open
    "freed storages",
    "later writes",  # writes to buffers that an inner or another region has read
    "changes",  # functions that do something else in the replay
    "unseen writes",  # writes through a pointer, by ops that do not mark them
    "jagged",  # jagged nested tensors, in programs of seeds from 200,000 on
    "writing backwards",  # backwards of custom functions that write their saved tensors
    "named functions",  # custom functions with names, in programs of seeds from 300,000 on
    "devices",  # on CUDA: the host, another device, streams
)


def chosen():
    text = os.environ.get("REMAT_FUZZ_WORDS") or "all"
    return frozenset(ALL if text == "all" else text.split(","))
