# SPDX-License-Identifier: BSD-3-Clause

"""What is known of a line of a fuzzed program."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Op:
    """{a}, {b} are read, {r}, {s} are made; for in-place ops {a} is written. {i}: a number below 6.

    saves: which of these autograd keeps, as letters. view: {r} is one of {a}.
    """

    template: str
    saves: str = ""
    results: int | None = None  # as many as the template makes
    weight: float = 2
    view: bool = False
    itself: bool = False  # that view is {a}, as autograd hands on what a function was given
    writes: bool = False
    buffer: int = 0  # 1: {c} is a buffer that is read, 2: written
    of: str = "b"  # the first letter of such buffers
    generator: bool = False
    backward: bool = False  # goes backward in the function
    hook: bool = False  # on {a}
    late: bool = False  # writes what it saves after that: hooks that copy have what was there before
    unversioned: bool = False  # the write: autograd is not told
    needs: str = ""  # the set of words of which it is one (words.py), if it is not always there

    def __post_init__(self):
        if self.results is None:
            object.__setattr__(self, "results", sum(f"{{{r}}}" in self.template for r in "rs"))

    @property
    def arguments(self):
        return 2 if "{b}" in self.template else 1 if "{a}" in self.template else 0
