# SPDX-License-Identifier: BSD-3-Clause

"""Sparse and quantized tensors in regions: ops run LibTorch's kernels for them, also where one kernel serves all layouts."""

import pytest
import torch
from programs import leaf
from same import assert_same

import remat_meta as remat


def base():
    torch.manual_seed(3)
    values = torch.randn(4, 4)
    return values.masked_fill(values.abs() < 0.4, 0)


MAKE = {
    "coo": lambda: base().to_sparse(),
    "csr": lambda: base().to_sparse_csr(),
    "csc": lambda: base().to_sparse_csc(),
    "quantized": lambda: torch.quantize_per_tensor(base(), 0.1, 0, torch.qint8),
}
OPS = {
    "empty_like": lambda t: torch.empty_like(t).shape,
    "zeros_like": torch.zeros_like,
    "full_like": lambda t: torch.full_like(t, 1.0),
    "clone": torch.clone,
    "relu": torch.relu,
    "twice": lambda t: t * 2,
    "sum": lambda t: t.sum(),
    "matmul": lambda t: t @ torch.ones(4, 4),
    "transpose": lambda t: t.t(),
    "cat": lambda t: torch.cat([t, t]),
    "max": lambda t: t.max(),
}


def plain_values(result):
    if not isinstance(result, torch.Tensor):
        return torch.tensor(result)
    return result.dequantize() if result.is_quantized else result.to_dense()


@pytest.mark.torch_warns  # warns of a prototype, and that there is no tape
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("made_inside", (False, True))
@pytest.mark.parametrize("layout", MAKE)
def test_ops_make_what_they_make_without_a_region(layout, made_inside, op):
    if layout in ("csr", "csc") and op in ("zeros_like", "full_like"):
        pytest.skip("limits.md, C5")
    try:
        OPS[op](MAKE[layout]())
    except (RuntimeError, NotImplementedError):
        pytest.skip("LibTorch has no such op")
    outside = MAKE[layout]()

    def program(wrap):
        made = []

        def fn(x):
            made.append(OPS[op](MAKE[layout]() if made_inside else outside))
            return x.sin().exp()

        x = leaf(4)
        wrap(fn)(x).sum().backward()
        layout_made = str(getattr(made[0], "layout", None))
        return x.grad, plain_values(made[0]), torch.tensor([ord(c) for c in layout_made])

    assert_same(program, remat.checkpoint())
    assert_same(program, remat.checkpoint(replay="auto"))
