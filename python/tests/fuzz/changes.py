# SPDX-License-Identifier: BSD-3-Clause

"""Steps whose functions do something else in the replay: remat raises, or the values are equal anyway."""

from .op import Op

WEIGHT = 0.02  # in one of 25 programs
PAIRS = {
    "factory": ("{a} * torch.zeros(4, 4)", "{a} * torch.ones(4, 4)"),
    "eye": ("{a} + torch.ones(4, 4)", "{a} + torch.eye(4)"),
    "window": ("{a} * torch.hann_window(4)", "{a} * torch.hann_window(4, periodic=False)"),
    "range": ("{a} * torch.arange(4)", "{a} * torch.arange(1, 5)"),
    "stride": ("{a} * {b}.reshape(-1)[::2][:4]", "{a} * {b}.reshape(-1)[::3][:4]"),
    "offset": ("{a} * {b}.reshape(-1)[:4]", "{a} * {b}.reshape(-1)[4:8]"),
    "transposed": ("{a} * {b}", "{a} * {b}.t()"),
    "expanded": ("{a} * {b}[0].expand(4, 4)", "{a} * {b}[:, :1].expand(4, 4)"),
    "captured": ("{a} * b0", "{a} * b1"),
    "weight": ("{a} * w0", "{a} * w1"),
    "operand": ("{a} - {b}", "{b} - {a}"),
    "made": ("({a}.sin() - {b}.cos()).exp()", "({b}.cos() - {a}.sin()).exp()"),
    "listed": ("torch.cat([{a}, {b}])[:4]", "torch.cat([{b}, {a}])[:4]"),
    "foreach": ("torch._foreach_mul([{a}, {b}], 0.5)[0]", "torch._foreach_mul([{b}, {a}], 0.5)[0]"),
    "number": ("{a} * 0.5", "{a} * 0.25"),
    "zero": ("torch.atan2({a}, torch.full((4, 4), 0.0))", "torch.atan2({a}, torch.full((4, 4), -0.0))"),
    "dim": ("{a}.softmax(0)", "{a}.softmax(1)"),
    "shift": ("{a}.roll(1, 0)", "{a}.roll(2, 0)"),
    "bool": ("{a}.cumsum(0) + {a}.std(0, unbiased=True)", "{a}.cumsum(0) + {a}.std(0, unbiased=False)"),
    "text": ('F.gelu({a}, approximate="none")', 'F.gelu({a}, approximate="tanh")'),
    "mode": ('torch.div({a}, 0.3, rounding_mode="floor") * {a}', 'torch.div({a}, 0.3, rounding_mode="trunc") * {a}'),
    "dtype": ("({a} * 3).bfloat16().float()", "({a} * 3).half().float()"),
    "cast": ("({a}.bfloat16() @ w0.bfloat16()).float()", "({a}.bfloat16() @ w1.bfloat16()).float()"),
    "casts": (
        "{a} * (w0.half().sin() - w1.half().cos()).float()",
        "{a} * (w1.half().sin() - w0.half().cos()).float()",
    ),
    "list": ("{a} * torch.tensor([1.0, 2.0, 3.0, 4.0])", "{a} * torch.tensor([1.0, 2.0, 3.0, 5.0])"),
    "index": ("{a}[torch.tensor([0, 1, 2, 3])]", "{a}[torch.tensor([3, 1, 2, 0])]"),
    "op": ("{a}.sin()", "{a}.cos()"),
    "given": ("{a} * given(0.5)", "{a} * given(0.25)"),
    "saved": ("Scaled.apply({a}, given(0.5))", "Scaled.apply({a}, given(0.25))"),
    "random": ("{a} * torch.rand(4, 4)", "{a} * torch.rand(8, 4)[4:]"),
}

CHANGES = {
    f"changed_{name}": Op(f"{{r}} = api.other(lambda: {first}, lambda: {other})", "a", weight=WEIGHT)
    for name, (first, other) in PAIRS.items()
}
