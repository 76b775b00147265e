# SPDX-License-Identifier: BSD-3-Clause

"""Ops on the CUDA stand-in give the bits of the CPU: PyTorch's own samples of its ops, forward and backward."""

import warnings

import pytest
import stand_in
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

pytestmark = pytest.mark.skipif(not stand_in.available(), reason="a GPU has other bits than the CPU")

SAMPLES = 2

# Ops that draw other random numbers than the CPU, or leave memory uninitialised.
WITHOUT_FIXED_NUMBERS = """
    bernoulli cauchy empty empty_like empty_permuted empty_strided exponential geometric log_normal multinomial new_empty
    new_empty_strided nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.feature_alpha_dropout.with_train nn.functional.fractional_max_pool2d
    nn.functional.fractional_max_pool3d nn.functional.multi_head_attention_forward nn.functional.rrelu normal normal.in_place
    normal.number_mean pca_lowrank rand_like randint randint_like randn randn_like svd_lowrank uniform
""".split()

EXCEPTIONS = {
    "as_strided.partial_views": "the sample reads memory beside its input",
    "histogram": "CUDA has no kernel",
    "histogramdd": "CUDA has no kernel",
    "jiterator_2inputs_2outputs": "it compiles CUDA code of the user",
    "jiterator_4inputs_with_extra_args": "it compiles CUDA code of the user",
    "jiterator_binary": "it compiles CUDA code of the user",
    "jiterator_binary_return_by_ref": "it compiles CUDA code of the user",
    "jiterator_unary": "it compiles CUDA code of the user",
    "_native_batch_norm_legit": "outside of training CUDA returns statistics that the CPU does not",
    "native_batch_norm": "outside of training CUDA returns statistics that the CPU does not",
    "renorm": "CUDA's gradient has a formula of its own",
    "linalg.eig": "the gradient of ones is not defined",
    "nn.functional.rms_norm": "CUDA's gradient is one kernel, the CPU's is made of several",
    "sparse.mm.reduce": "CUDA has no kernel",
    "tensor_split": "it takes its indices on the CPU alone",
    "to_sparse": "gradients of sparse tensors are not compared",
} | dict.fromkeys(WITHOUT_FIXED_NUMBERS, "its numbers are not fixed")


def name_of(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def tensors_of(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def on(device, sample):
    def moved(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(device).requires_grad_(value.requires_grad)

    return sample.transform(moved)


def run(op, sample):
    """The results of a call, and the gradients of its tensor arguments."""
    results = tensors_of(op(sample.input, *sample.args, **sample.kwargs))
    arguments = [t for t in tensors_of([sample.input, sample.args, sample.kwargs]) if t.requires_grad]
    roots = [t for t in results if t.requires_grad]
    gradients = torch.autograd.grad(roots, arguments, [torch.ones_like(t) for t in roots], allow_unused=True) if roots else ()
    return [t.detach().cpu() for t in (*results, *gradients) if t is not None]


def same_bits(a, b):
    if a.layout != torch.strided or a.is_complex():
        return torch.allclose(a.to_dense(), b.to_dense(), rtol=0, atol=0, equal_nan=True)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(12345.0), b.nan_to_num(12345.0))


def samples_of(op):
    grad = op.supports_autograd
    for _, sample in zip(range(SAMPLES), op.sample_inputs("cpu", torch.float32, requires_grad=grad)):
        yield sample


@pytest.mark.parametrize("op", [op for op in op_db if torch.float32 in op.dtypes], ids=name_of)
def test_an_op_has_the_bits_of_the_cpu(op):
    if name_of(op) in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[name_of(op)])
    stand_in.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples_of(op):
            expected = run(op, on("cpu", sample))
            got = run(op, on("cuda", sample))
            assert len(expected) == len(got)
            for i, (a, b) in enumerate(zip(expected, got)):
                assert same_bits(a, b), (i, sample.args, sample.kwargs, a, b)
    assert stand_in.garbage() == 0
    assert stand_in.faults() == 0


def gradients_of(module, argument, device):
    module = module.to(device)
    module.zero_grad()
    argument = argument.detach().to(device).requires_grad_()
    result = tensors_of(module(argument))[0]
    result.sin().sum().backward()
    return [t.detach().cpu() for t in (result, argument.grad, *(p.grad for p in module.parameters()))]


# CUDA computes a cell of these modules in one kernel, which sums in another order than the CPU.
@pytest.mark.parametrize(
    "module",
    [torch.nn.LSTM(3, 4, 2), torch.nn.GRU(3, 4, 2), torch.nn.GRU(3, 4, bias=False), torch.nn.RMSNorm(3)],
    ids=repr,
)
def test_a_fused_kernel_has_the_numbers_of_the_cpu(module):
    argument = torch.randn(5, 2, 3)
    for a, b in zip(gradients_of(module, argument, "cpu"), gradients_of(module, argument, "cuda")):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert stand_in.garbage() == stand_in.faults() == 0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("way", ["fused", "foreach", "differentiable"])
def test_an_optimizer_has_the_bits_of_the_cpu(kind, way):
    def step(device):
        weights = [torch.full((n,), 0.5, device=device, requires_grad=True) for n in (3, 70)]
        optimizer = kind(weights, lr=0.1, **({way: True} if way != "differentiable" else {}))
        for w in weights:
            w.grad = torch.arange(w.numel(), device=device) / 7
        optimizer.step()
        optimizer.step()
        return torch.cat([w.detach().cpu() for w in weights])

    assert same_bits(step("cpu"), step("cuda"))
    assert stand_in.garbage() == stand_in.faults() == 0


def test_random_numbers_follow_the_state_of_the_generator():
    x = torch.ones(1000, device="cuda")
    draws = {
        "dropout": lambda: torch.nn.functional.dropout(x),
        "normal": lambda: torch.randn(1000, device="cuda"),
        "permutation": lambda: torch.randperm(1000, device="cuda"),
        "bernoulli": lambda: torch.bernoulli(x / 2),
    }
    for name, draw in draws.items():
        state = torch.cuda.get_rng_state()
        first, second = draw(), draw()
        assert not torch.equal(first, second), name
        torch.cuda.set_rng_state(state)
        assert torch.equal(first, draw()), name
        assert torch.equal(second, draw()), name


def test_a_softmax_may_convert_half_to_float():
    x = torch.randn(3, 4).half().cuda().requires_grad_()
    y = torch.nn.functional.softmax(x, 1, dtype=torch.float32)
    (y * y).sum().backward()
    assert torch.equal(y.cpu(), torch.nn.functional.softmax(x.detach().cpu().float(), 1))
    assert x.grad.dtype == torch.half
    assert stand_in.garbage() == 0


def test_a_launch_that_nobody_computes_is_counted():
    q = torch.randn(1, 2, 8, 8, device="cuda")
    stand_in.reset()
    torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)
    assert stand_in.garbage() > 0
    stand_in.reset()


def test_a_kernel_of_the_cpu_that_fails_is_counted(capfd):
    stand_in.reset()
    torch.nn.functional.embedding(torch.tensor([7], device="cuda"), torch.ones(2, 2, device="cuda")).cpu()
    assert stand_in.garbage() == 1
    assert "aten::index_select: index out of range" in capfd.readouterr().err
    stand_in.reset()
