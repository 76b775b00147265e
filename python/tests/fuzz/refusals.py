# SPDX-License-Identifier: BSD-3-Clause

"""What remat refuses by design, by the words of its errors, and where that is documented."""

import re

IN_PLACE = "errors.md: a tensor that the region read was written before backward"
CAPTURED = "errors.md: a SAVE call writes or returns a captured tensor"
RESULT = "errors.md: a kept result of a SAVE call was written after the region"
COPIES = "limits.md, H3: hooks that copy do not lift autograd's rule of in-place writes"
BOTH = "limits.md, W6: a tensor is passed and captured"
INNER = "limits.md, B4, B7, B8, H2: a backward inside"
CUSTOM = "limits.md, B5: a backward inside through a custom function of what was written"
LIBRARY = "errors.md: an op of a library writes what its schema does not mark"
WRAPPER = "errors.md: a tensor of a class with __torch_dispatch__ is written, or a SAVE call returns it"
INSIDE = "errors.md: what is in a tensor subclass was written in place"
OF_JAGGED = "limits.md, C8: a named call, or a nested region, gets a jagged nested tensor that the region has made"
JAGGED_MODE = "limits.md, C10: a dispatch mode, and attention on jagged nested tensors"
MADE = "limits.md, C1, C2: wrapper subclasses that a function makes"
FREED = "errors.md: memory that a replay needs was freed after the forward"
TRACKED = "limits.md, A1: CommDebugMode round the backward alone"
COUNTS = "limits.md, A2, A3, A4: modes that count by hooks, in each other or with a backward inside"
THROWS = "limits.md, N7: a SAVE call writes what it has not made and throws"
PACK = "limits.md, H4: a pack hook that throws, in a region inside a region or in an OFFLOAD call"
DATA = "errors.md: a saved tensor is written by way of .data"
STATISTICS = "limits.md, M7: batch norm writes statistics that were saved, without a new version"
EXCHANGED = "errors.md: a tensor that is saved or read is given other memory before backward"
UNVERSIONED = "errors.md: a saved tensor is written by an op that gives it no new version"
VIEWS = "limits.md, A5: a mode round the forward or the backward alone, and a policy that keeps views"
CAME_BACK = "limits.md, T2: a nested tape has an argument that came back from hooks"
ASKS = "limits.md, B6: a function asks requires_grad of what its write changed"
HANDED = "limits.md, W10: a nested region writes a part of what it then hands to torch's checkpoint"
HOOKED = "limits.md, H8: a backward writes what was saved under hooks"
FUNCTION = "limits.md, W7: a custom function gets a captured tensor, then it is written"

# A mode round the forward or the backward alone: in the program, or round all of one of them.
ONE_MODE = r"(?s)with (PassThrough|Functions|flops|comm_debug)\(\).*policy=|policy=.*# how: \w*\|([^|]*)\|(?!\2\Z)"
HOOKS = r"clones\(\)|save_on_cpu|_pair\("  # that copy

# What the error says, what the program must have in it, the reason.
REFUSALS = (
    (r"tensor argument \d+ .*expected the argument as the forward got it", "", IN_PLACE),
    (r"expected the tensor from outside the region as the forward (read|saved) it", "", IN_PLACE),
    (r"expected the tensors in one of a Python class of its own", r"q0\.inner\.", INSIDE),
    (r"what the region has saved under saved-tensor hooks", r"Writes(Saved|Result)", HOOKED),
    (r"expected its result as it left it, got it modified in-place", "SAVE|OFFLOAD|policy", RESULT),
    (r"modified by an inplace operation.*expected (the tensor as the forward saved it|it as the call left it)", HOOKS, COPIES),
    (r"expected in-place ops that autograd notices.* by way of another with versions", "SAVE|OFFLOAD|policy", RESULT),
    (r"expected to write strided arguments of the call or tensors from outside", "", CAPTURED),
    (r"into which a SAVE call has written a value with a gradient", "SAVE|OFFLOAD", CAPTURED),
    (r"as in the forward.*requires_grad differs", "", BOTH),
    (r"It had requires_grad on, not a leaf; now requires_grad off, a leaf", "", BOTH),
    (r"It was saved between other ops", r"(?s)\.apply\(.*_\(", FUNCTION),
    (r"It is another tensor, another part of one", r"(?s)\.apply\(\w+\).*\w\[[^]]*\] = ", FUNCTION),
    (r"It was saved between other ops", r"(?s)select\(0, 1\)\.mul_.*stops_early", HANDED),
    (r"inside the region's function that passes no SAVE call", "inner_(grad|backward)", INNER),
    (r"stays in what runs again, got one that reaches the graph of the forward", r"inner_(grad|backward)", CUSTOM),
    (r"from elsewhere", "inner_(grad|backward)", INNER),
    (r"expected ops that mark in their schema what they write", r"ops\.fuzz\.", LIBRARY),
    (r"expected in-place ops on plain tensors from outside the region", r"\b(t0|t1|p0|p1|q0|wrap)\b", WRAPPER),
    (r"expected a plain tensor, got a subclass with __torch_dispatch__", r"\b(t0|t1|p0|p1|q0|wrap)\b", WRAPPER),
    (r"from elsewhere", r"\bwrap\(", MADE),
    (r"It reads another tensor than the forward did", "jagged_", OF_JAGGED),
    (
        r"must be contiguous|is irregular and does not have a size|Multiple dispatch failed",
        r"(?s)jagged_.*scaled_dot_product_attention\(\*",
        JAGGED_MODE,
    ),
    (r"is a view and is being modified inplace.*created inside a custom Function", r"\bbn\(", TRACKED),
    (r"Another op has saved it", r"(?s)\bbn\(.*# how: \w*\|(?!comm_debug)[^|]*\|comm_debug", TRACKED),
    (r"expected to pass \d+ hooks on gradients as in", r"(?s)(flops|comm_debug).*inner_|inner_.*(flops|comm_debug)", COUNTS),
    (r"passes no hook which the function has set", r"(?s)(flops|comm_debug).*inner_|inner_.*(flops|comm_debug)", COUNTS),
    (r"leave the hooks of arguments and captured", r"(?s)comm_debug.*flops|flops.*comm_debug|flops.*inner_", COUNTS),
    (
        r"threw, and a function that went on|got another tensor .* from outside the region",
        r"(?s)suppress.*(SAVE|OFFLOAD|policy)",
        THROWS,
    ),
    (
        r"as in the forward, got|expected the exception that it threw|expected a use of its shape only",
        r"(?s)refused_pack.*(SAVE|OFFLOAD|policy)",
        PACK,
    ),
    (r"expected in-place ops that autograd notices|expected a saved tensor to have its memory", r"\.data\.", DATA),
    (r"got a storage that was freed or made smaller since", r"api\.free\(\w+\)", FREED),
    (r"differentiated Tensors appears to not have been used", "inner_grad", INNER),
    (r"passes no hook which the function has set or removed", "(?s)hook.*inner_", INNER),
    (r"expected the gradients that it gave in the forward", "(?s)inner_.*hook", INNER),
    (r"expected to pass \d+ hooks on gradients as in the forward", "(?s)hook.*inner_|inner_.*hook", INNER),
    (r"expected uint8 \[|got uint8 \[", r"(?s)saved_tensors_hooks=.*replay=|replay=.*saved_tensors_hooks=", CAME_BACK),
    (r"A named call is missing, new or renamed", ONE_MODE, VIEWS),
    (r"branches on state or on data that has changed", r"(?s)inner_\w+\((\w+)\).*\1\.copy_", ASKS),
    (r"It reads another tensor than the forward did", r"\.data = ", DATA),
    (r"got a region's result that was written by way of", r"# how: write_data", DATA),
    (r"was written without a new version, through data", r"# how: write_data", DATA),
    (r"was written without a new version, through data", r"\bbn\.running", STATISTICS),
    (
        r"was written by way of|got other memory|[Ii]t (reads|is) (another tensor|a cast of another)"
        r"|from outside #\d+\) as in the forward.*from elsewhere|expected to write what the forward wrote",
        r"# how: exchange_data",
        EXCHANGED,
    ),
    (r"fuzz::place\(.*A number differs", r"# how: exchange_data", EXCHANGED),
    (r"expected the values that the forward saved .* got others from its tape", r"# how: write_data", DATA),
    (r"It reads another tensor than the forward did", r"\bwrap\(", MADE),
    (r"has written since, without a new version", r"\bbn\.running|_foreach_mul_|_fused_sgd_|ops\.fuzz", UNVERSIONED),
)


def reason_of(message, source, how):
    """The documented reason, or "" for an error that nobody expects."""
    source = f"{source}# how: {how}"
    for error, part, reason in REFUSALS:
        if re.search(error, message, re.DOTALL) and re.search(part, source):
            return reason
    return ""
