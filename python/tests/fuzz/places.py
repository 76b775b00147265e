# SPDX-License-Identifier: BSD-3-Clause

"""State of the generator: its knowledge of values, and its place in the program."""

import dataclasses


@dataclasses.dataclass
class Memory:
    """A group of values that may be views of each other. frozen: a region has read it, so that a write would come between its
    forward and its backward. saved: autograd has saved it."""

    owner: int  # the function that made the memory
    is_leaf: bool = False
    buffer: bool = False
    frozen: bool = False
    saved: bool = False
    past_save: bool = False  # a SAVE call took or returned a value of it, or one from which it was made


@dataclasses.dataclass(frozen=True)
class Value:
    number: int
    memory: Memory = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Place:
    function: int = 0
    depth: int = 0
    regions: tuple = ()  # the open regions, as RegionState
    saving: bool = False  # inside a SAVE call of the innermost region
    saving_anywhere: bool = False
    call_owner: int = 0  # functions below this number are outside the SAVE call
    no_grad: bool = False
    repeated: bool = False  # in a region that runs twice; only this region may keep the results of its calls
    copies: bool = False  # under hooks that copy saved tensors, also in plain code
    inner_backward: bool = True  # a backward may run here; not if a replay would run past the forward's present position


@dataclasses.dataclass
class RegionState:
    function: int
    store: bool
    generator: bool
    plain: bool = False  # under no_grad, so the call is a plain call
    has_rules: bool = False
    reads: list = dataclasses.field(default_factory=list)
    writes: list = dataclasses.field(default_factory=list)
    saves: bool = False
