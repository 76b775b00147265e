# SPDX-License-Identifier: BSD-3-Clause

"""Properties of a line of a fuzzed program."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Op:
    """An op that reads {a} and {b} and makes {r} and {s}; an in-place op writes {a}. {i}: a number below 6.

    saves: letters of the tensors that autograd saves. view: {r} is a view of {a}.
    """

    template: str
    saves: str = ""
    results: int | None = None  # by default as many as the template makes
    weight: float = 2
    view: bool = False
    itself: bool = False  # a custom function returns {a} itself, and autograd makes a view {r} of it
    writes: bool = False
    buffer: int = 0  # 1: reads the buffer {c}, 2: writes it
    of: str = "b"  # first letter of such buffers
    generator: bool = False
    backward: bool = False  # runs a backward in the function
    hook: bool = False  # registers a hook on {a}
    late: bool = False  # writes a tensor after saving it, so that hooks that copy have the old value
    unversioned: bool = False  # writes without a new version, so that autograd does not see it
    needs: str = ""  # the set of steps (words.py) to which it belongs, if the set is optional

    def __post_init__(self):
        if self.results is None:
            object.__setattr__(self, "results", sum(f"{{{r}}}" in self.template for r in "rs"))

    @property
    def arguments(self):
        return 2 if "{b}" in self.template else 1 if "{a}" in self.template else 0
