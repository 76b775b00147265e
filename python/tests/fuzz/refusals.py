# SPDX-License-Identifier: BSD-3-Clause

"""The errors by which remat refuses programs by design: their types, fixed words, and the rows of docs/reference/limits.md."""

import dataclasses
import re

ERROR, REFUSED, MISMATCH, WRONG_TYPE = "RuntimeError", "NotImplementedError", "ReplayMismatch", "TypeError"

# A mode around the forward or the backward alone: in the program, or around all of one of them.
ONE_MODE = r"(?s)with (PassThrough|Functions|flops|comm_debug)\(\).*policy=|policy=.*# how: \w*\|([^|]*)\|(?!\2\Z)"
HOOKS = r"clones\(\)|save_on_cpu|_pair\("  # hooks that copy
SAVES = "SAVE|OFFLOAD|policy"
WRAPPED = r"\b(t0|t1|p0|p1|q0|wrap)\b"
COUNTING = r"(?s)(flops|comm_debug).*inner_|inner_.*(flops|comm_debug)"
PACK = r"(?s)refused_pack.*(SAVE|OFFLOAD|policy)"
THROWN = r"(?s)suppress.*(SAVE|OFFLOAD|policy)"
CAME_BACK = r"(?s)saved_tensors_hooks=.*replay=|replay=.*saved_tensors_hooks="
EXCHANGED = r"# how: exchange_data"
JAGGED_MODE = r"(?s)jagged_.*(PassThrough|flops|comm_debug)\(\)"
JAGGED_ONE_MODE = r"(?s)jagged_.*# how: \w*\|([^|]*)\|(?!\1\Z)"  # around all of the forward or of the backward
JAGGED_HOOKS = rf"(?s)jagged_.*(saved_tensors_hooks=|{HOOKS})"
JAGGED_ATTENTION = r"(?s)jagged_.*scaled_dot_product_attention\(\*"


@dataclasses.dataclass(frozen=True)
class Rule:
    rows: str  # rows of docs/reference/limits.md
    error: str  # names of classes; a subclass does not count
    text: str  # words at the beginning of a clause of the message, as written at one place in remat's source
    part: str = ""  # a pattern that the program must contain
    torchs: bool = False  # the words are torch's
    several: str = ""  # if several places have the words: a further pattern in the message

    def fits(self, error, source):
        message = str(error)
        clause = re.search(rf"(?:^|[\s(]){re.escape(self.text)}", message)
        if type(error).__name__ not in self.error.split() or not clause:
            return False
        return bool(re.search(self.several, message, re.DOTALL) and re.search(self.part, source))

    @property
    def reason(self):
        return f"{self.rows}: {self.text}"


REFUSALS = (
    # A tensor of the region was written before backward.
    Rule("W11", ERROR, "expected the argument as the forward got it"),
    Rule("W11", ERROR, "expected the tensor from outside the region as the forward read it"),
    Rule("W11", ERROR, "expected the tensor from outside the region as the forward ", several="the forward saved it"),
    Rule("C4", ERROR, "expected the tensors in one of a Python class of its own as the forward read them", r"q0\.inner\."),
    Rule("H8", REFUSED, "expected that nobody writes in backward what the region has saved", r"Writes(Saved|Result)"),
    Rule("N8", ERROR, "expected its result as it left it, got it modified in-place", SAVES),
    Rule("H3", ERROR, "expected the tensor as the forward saved it", HOOKS, several="modified by an inplace operation"),
    Rule("H3", ERROR, "expected it as the call left it", HOOKS),
    Rule("M9", REFUSED, "expected in-place ops that autograd notices", rf"{SAVES}|\.data\."),
    Rule("M9", REFUSED, "expected a saved tensor to have its memory until the region ends", r"\.data\."),
    Rule("M17", ERROR, "expected its memory as the forward left it, got a storage that was freed", r"api\.free\(\w+\)"),
    # Written through data.
    Rule("M8", ERROR, "got a region's result that was written by way of", r"# how: (write|exchange)_data"),
    Rule("M7", ERROR, "was written without a new version, through data", r"# how: (write|exchange)_data|\bbn\.running"),
    Rule("M7", ERROR, "has written since, without a new version", r"\bbn\.running|_foreach_mul_|_fused_sgd_|ops\.fuzz"),
    Rule("S4", ERROR, "expected the values that the forward saved", r"# how: write_data"),
    Rule("M13", MISMATCH, "It reads another tensor than the forward did", rf"\.data = |{EXCHANGED}"),
    Rule("M13", ERROR, "expected the memory that it had in the forward, got other memory", EXCHANGED),
    Rule("M13", f"{ERROR} {MISMATCH}", "It is another tensor, another part of one", EXCHANGED),
    Rule("M13", MISMATCH, "It reads a cast of another", EXCHANGED),
    Rule("M13", f"{ERROR} {MISMATCH}", "expected to write what the forward wrote, got another tensor", EXCHANGED),
    Rule("M13", MISMATCH, "from elsewhere", EXCHANGED),
    Rule("M13", MISMATCH, "A number differs: ", EXCHANGED, several=r"fuzz::place\("),
    # SAVE calls
    Rule("N12", REFUSED, "expected to write strided arguments of the call or tensors from outside"),
    Rule("N13", REFUSED, "into which a SAVE call has written a value with a gradient", "SAVE|OFFLOAD"),
    Rule("N14", REFUSED, "expected a plain tensor, got a subclass with __torch_dispatch__", WRAPPED),
    Rule("N7", REFUSED, "expected a SAVE call that writes what it has not made to return, got one that threw", THROWN),
    Rule("N7", ERROR, "expected to write what the forward wrote, got another tensor", THROWN),
    # Captured arguments, custom functions
    Rule("W6", MISMATCH, "requires_grad differs: "),
    Rule("W6", f"{ERROR} {MISMATCH}", "as in the forward, got", several="not a leaf; now requires_grad off, a leaf"),
    Rule("W7", f"{ERROR} {MISMATCH}", "It was saved between other ops", r"(?s)\.apply\((\w+)\b.*\b\1\b[^\n]*_\("),
    Rule("W7", f"{ERROR} {MISMATCH}", "It is another tensor, another part of one", r"(?s)\.apply\(\w+\).*\w\[[^]]*\] = "),
    # Backwards inside
    Rule("B16", REFUSED, "expected a backward inside the region's function that passes no SAVE call", "inner_(grad|backward)"),
    Rule("B5", REFUSED, "expected a backward inside the function that stays in what runs again", r"inner_(grad|backward)"),
    Rule("B4 B8", MISMATCH, "from elsewhere", "inner_(grad|backward)"),
    Rule("B6", MISMATCH, "The function branches on state", r"(?s)inner_\w+\((\w+)\).*\1\.copy_"),
    Rule("B7", ERROR, "One of the differentiated Tensors appears to not have been used", "inner_grad", torchs=True),
    Rule("H2", REFUSED, "expected a backward inside the function that passes no hook which the function", "(?s)hook.*inner_"),
    Rule("H2", MISMATCH, "expected the gradients that it gave in the forward", "(?s)inner_.*hook"),
    Rule("H2", MISMATCH, "hooks on gradients as in the forward, got", "(?s)hook.*inner_|inner_.*hook"),
    # Modes
    Rule("A1", ERROR, "is a view and is being modified inplace", r"\bbn\(", torchs=True),
    Rule("A1", f"{ERROR} {MISMATCH}", "Another op has saved it", r"(?s)\bbn\(.*# how: \w*\|(?!comm_debug)[^|]*\|comm_debug"),
    Rule("A2 A3 A4", MISMATCH, "hooks on gradients as in the forward, got", COUNTING),
    Rule("A3", REFUSED, "expected a backward inside the function that passes no hook which the function has set", COUNTING),
    Rule(
        "A2 A3", REFUSED, "expected its function to leave the hooks of arguments and captured tensors",
        r"(?s)comm_debug.*flops|flops.*comm_debug|flops.*inner_",
    ),
    Rule("A5", MISMATCH, "A named call is missing, new or renamed", ONE_MODE),
    # Hooks that throw, hooks and tapes
    Rule("H4", MISMATCH, "as in the forward, got", PACK, several="got"),
    Rule("H4", MISMATCH, "expected the exception that it threw in the forward", PACK),
    Rule("H4", ERROR, "expected a use of its shape only", PACK),
    Rule("T2", f"{ERROR} {MISMATCH}", "as in the forward, got", CAME_BACK, several=r"expected uint8 \[|got uint8 \["),
    # Libraries, tensor classes
    Rule("M12", REFUSED, "expected ops that mark in their schema what they write", r"ops\.fuzz\."),
    Rule("C3", REFUSED, "expected in-place ops on plain tensors from outside the region", WRAPPED),
    Rule("C8", MISMATCH, "It reads another tensor than the forward did", "jagged_"),
    Rule("C10", ERROR, "If inputs are nested tensors they must be contiguous", JAGGED_ATTENTION, torchs=True),
    Rule("C10", ERROR, "is irregular and does not have a size", JAGGED_ATTENTION, torchs=True),
    Rule("C10", ERROR, "Internal error: NestedTensorImpl doesn't support sizes", JAGGED_MODE, torchs=True),
    Rule("C10", f"{ERROR} {MISMATCH}", "as in the forward, got", JAGGED_ONE_MODE, several="float32"),
    Rule("C10", WRONG_TYPE, "Multiple dispatch failed", "jagged_", torchs=True),
    Rule("C10", WRONG_TYPE, "unsupported operand type(s) for @: 'NestedTensor'", JAGGED_ONE_MODE, torchs=True),
    Rule("C11", MISMATCH, "as in the forward, got", JAGGED_HOOKS, several="from elsewhere| strided "),
)  # fmt: skip


def reason_of(error, source, how):
    """Returns the documented reason, or "" for an unexpected error."""
    source = f"{source}# how: {how}"
    return next((rule.reason for rule in REFUSALS if rule.fits(error, source)), "")
