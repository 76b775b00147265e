# SPDX-License-Identifier: BSD-3-Clause

"""Ops of a fuzzed program: lines of Python over 4 x 4 tensors."""

import dataclasses

from .devices import ON_CUDA, at_home
from .foreign import FOREIGN, RARE
from .op import Op

OPS = {
    "sin": Op("{r} = {a}.sin()", "a", weight=4),
    "tanh": Op("{r} = {a}.tanh()", "r", weight=4),
    "sigmoid": Op("{r} = torch.sigmoid({a})", "r"),
    "gelu": Op("{r} = F.gelu({a})", "a"),
    "softmax": Op("{r} = {a}.softmax(1)", "r"),
    "layer_norm": Op("{r} = F.layer_norm({a}, (4,), w0[0], w1[1])", "a"),
    "mul": Op("{r} = {a} * {b}.tanh()", "a", weight=4),
    "add": Op("{r} = {a} + {b}", weight=4),
    "lerp": Op("{r} = torch.lerp({a}, {b}, 0.3)"),
    "scale": Op("{r} = {a} * 0.8", weight=3),
    "matmul": Op("{r} = ({a}.tanh() @ {b}.tanh()).float()", weight=3),
    "linear": Op("{r} = F.linear({a}, w0, w1[0]).float()", "a", weight=4),
    "einsum": Op('{r} = torch.einsum("ij,kj->ik", {a}.tanh(), {b}.tanh()).float()'),
    "attention": Op(
        "{r} = F.scaled_dot_product_attention({a}[None], {b}[None], {a}[None], dropout_p=0.2)[0]"
        ".float()", "ab"
    ),
    "convolution": Op(
        "{r} = F.conv2d({a}[None, None], w1[None, None, :3, :3], padding=1)[0, 0].float()", "a"
    ),
    "lstm_cell": Op(
        "{r}, {s} = (t.float() for t in torch.lstm_cell({a}, ({b}, {a}), w0.repeat(4, 1),"
        " w1.repeat(4, 1)))", "ab", results=2
    ),
    "dropout": Op("{r} = F.dropout({a}, 0.4)", weight=4),
    "rrelu": Op("{r} = torch.rrelu({a}, 0.1, 0.3, False)", weight=2),  # tagged as random, but draws nothing here
    "rand": Op("{r} = {a} * torch.rand_like({a})", weight=3),
    "normal": Op("{r} = {a} + torch.empty(4, 4).normal_()"),
    "permutation": Op("{r} = {a}[torch.randperm(4)]"),
    "bernoulli": Op("{r} = {a} * torch.bernoulli(torch.full((4, 4), 0.5))"),
    "generator": Op("{r} = {a} * torch.rand(4, 4, generator=gen)", weight=3, generator=True),
    "sort": Op("{r}, index = torch.sort({a}, 0)\n{s} = {b}.gather(0, index)", results=2),
    "max": Op("{r} = {a} - {a}.max(1, keepdim=True).values"),
    "var_mean": Op("spread, middle = torch.var_mean({a}, 1, keepdim=True)\n{r} = ({a} - middle) * spread", "a"),
    "chunk": Op("{r}, {s} = (part.repeat(2, 1) for part in {a}.chunk(2))", results=2),
    "unbind": Op("{r} = torch.stack({a}.unbind(1))"),
    "foreach": Op("{r}, {s} = torch._foreach_mul([{a}, {b}], 0.7)", results=2),
    "where": Op("{r} = torch.where({a} > 0.1, {a}, {b})"),
    "cumsum": Op("{r} = {a}.cumsum(0) * 0.5"),
    "cat": Op("{r} = torch.cat(({a}[:2], {b}[2:]))"),
    "index": Op("{r} = {a}.index_select(0, {a}.detach().sum(1).argsort())"),
    "scatter": Op("{r} = {a}.scatter_add(0, {b}.detach().argsort(0), {b})"),
    "empty": Op("{r} = {a} + {a}[:0].sin().sum()"),
    "unwritten": Op(
        "{r} = torch.where({a} > 0, {a}.sin(), torch.empty(4, 4))\n{r} = torch.where({a} > 0, {r}, {a}.cos())"
    ),
    "tensor": Op("{r} = {a} * torch.tensor([0.5, 1.0, -1.0, 0.25])"),
    "arange": Op("{r} = {a} - torch.arange(16.0).reshape(4, 4) / 16"),
    "double": Op("{r} = {a}.double().cos().float()"),
    "bfloat16": Op("{r} = {a}.bfloat16().sin().float()"),
    "item": Op("{r} = {a} * {a}.detach().mean().clamp(-2, 2).nan_to_num().item()"),
    "branch": Op("{r} = {a}.sin() if {a}.sum() > 0 else {a}.cos()", "a"),
    "clone": Op("{r} = {a}.clone()", weight=3),
    "square": Op("{r} = Square.apply({a}.tanh())", weight=3),
    "saves_result": Op("{r} = SavesResult.apply({a})", "r"),
    "two_results": Op("{r}, {s}, _ = TwoResults.apply({a}, {b}, 0.6)", results=2),
    "in_place_function": Op("{r} = InPlace.apply({a}.clone())"),
    "writes_saved": Op("{r} = WritesSaved.apply({a})", needs="writing backwards"),
    # Often {r} is saved again, which plain code refuses.
    "writes_result": Op("{r} = WritesResult.apply({a})", "r", weight=RARE, needs="writing backwards"),
    "out": Op(
        "{r} = torch.zeros(4, 4)\nwith torch.no_grad():\n    torch.add({a}, {b}, out={r})"
    ),
    "hook": Op("{r} = {a} * 1.5\nhook({r}, 0.5)"),
    "hook_later": Op("{r} = {a}.sin()\nhook({a}, 0.9)", "a", weight=1, hook=True),
    "retain_grad": Op("{r} = {a}.cos()\nif {r}.requires_grad:\n    {r}.retain_grad()", "a"),
    "inner_grad": Op("{r} = inner_grad({a})", "a", weight=1, backward=True),
    "inner_backward": Op("{r} = inner_backward({a})", weight=1, backward=True),
    "pack_throws": Op("refused_pack({a}, {i})\n{r} = {a}.cos()", "a", weight=1),
    "stops_early": Op("{r} = stops_early({a})", weight=1),
    "batch_norm": Op("{r} = bn({a})", "a", weight=3),
    # Saves the running statistics, which a later bn() in training writes without a new version.
    "batch_norm_eval": Op(
        "{r} = F.batch_norm({a}, bn.running_mean, bn.running_var, bn.weight, bn.bias)", "a", weight=0.1
    ),
    # Views
    "transpose": Op("{r} = {a}.t()", view=True, weight=3),
    "reshape": Op("{r} = {a}.reshape(2, 8).reshape(4, 4)", view=True),
    "window": Op("{r} = torch.cat(({a}, {b}))[2:6]"),
    "detach": Op("{r} = {a}.detach()", view=True),
    "alias": Op("{r} = {a}", view=True, weight=1),
    # Buffers
    "read_buffer": Op("{r} = {a} * ({c} + 0.5)", buffer=1),
    "write_buffer": Op("{c}.mul_(0.5).add_({a}.detach().tanh())", results=0, buffer=2),
    "throws": Op(
        "with contextlib.suppress(RuntimeError):\n    {c}.copy_(torch.ones(3))\n{r} = {a} * ({c}.clone() + 0.5)", buffer=2,
        weight=0.5,
    ),
    "observe": Op("{c}.resize_(4, 4).mul_(0.5).add_({a}.detach().tanh())", results=0, buffer=2),
    "write_row": Op("{c}[1] = {a}.detach()[0]", results=0, buffer=2),
    "fused_step": Op(
        "with torch.no_grad():\n    torch._fused_sgd_([{c}], [{a}.detach().clone()], [], weight_decay=0.1, momentum=0.0,"
        " lr=0.1, dampening=0.0, nesterov=False, maximize=False, is_first_step=True)", results=0, buffer=2, weight=0.5
    ),
    # In-place ops
    "scale_": Op("{a}.mul_(0.9)", results=0, writes=True, weight=3),
    "add_": Op("{a}.add_({b})", results=0, writes=True, weight=3),
    "copy_": Op("{a}.copy_({b})", results=0, writes=True),
    "data_": Op("{a}.data.mul_(0.9)", results=0, writes=True, unversioned=True),
    "set_data": Op("{a}.data = {a}.data.tanh()", results=0, writes=True, unversioned=True, weight=1),
    "zero_": Op("{a}.zero_()", results=0, writes=True, weight=1),
    "relu_": Op("{a}.relu_()", "a", results=0, writes=True),
    "dropout_": Op("F.dropout({a}, 0.3, inplace=True)", results=0, writes=True),
    "uniform_": Op("with torch.no_grad():\n    {a}.uniform_()", results=0, writes=True, weight=1),
    "select_": Op("{a}.select(0, 1).mul_(1.1)", results=0, writes=True, weight=3),
    "transpose_": Op("{a}.t().add_({b}.detach().clone())", results=0, writes=True),
    "slice_": Op("{a}[1:3] = {b}[:2] * 1.0", results=0, writes=True),
    "index_": Op("{a}[torch.tensor([0, 2])] = 0.5", results=0, writes=True),
    "mask_": Op("{a}.masked_fill_({b} > 0.5, 0.1)", results=0, writes=True),
    "foreach_": Op("{r} = {a} * 1.0\ntorch._foreach_mul_([{r}], 0.7)"),
    # Rarely writes {a} itself: under a dispatch mode this gives {a} no new version, so plain autograd misses the write.
    "foreach_saved_": Op("torch._foreach_mul_([{a}], 0.7)", results=0, writes=True, weight=RARE),
    **FOREIGN,
}

# Ops between devices
BETWEEN = {
    "to_host": Op("{r} = {a}.cpu() * 1.0"),
    "to_main": Op("{r} = {a}.to(MAIN) * 1.0"),
    "to_second": Op("{r} = {a}.to(second()) * 1.0"),
    "to_second_later": Op("{r} = {a}.to(second(), non_blocking=True) * 1.0"),
    "pinned": Op("{r} = {a} * pinned_copy({b}, {a}.device)"),
    "pinned_twice": Op("{r} = {a} + pinned_copy({a}, second()).to({a}.device)"),
    "rand_here": Op('{r} = {a} * torch.rand(4, 4, device="cuda").to({a}.device)'),
    "used_here": Op("{r} = {a}.sin()\nused_here({r})", "a"),
}
# Ops whose CUDA kernels have no computation on the host.
NOT_ON_CUDA = {
    "lstm_cell",  # a fused kernel that exists for CUDA alone
    "log_sigmoid",  # the CPU's kernel returns another buffer
    "complex_fourier",  # uses cuFFT
    "batch_norm_eval",  # the CPU's kernel returns no statistics
}

if ON_CUDA:
    OPS = {
        **{
            kind: dataclasses.replace(op, template=at_home(op.template, op.buffer == 2), results=op.results)
            for kind, op in OPS.items()
            if kind not in NOT_ON_CUDA
        },
        **{kind: dataclasses.replace(op, needs="devices", weight=2.5) for kind, op in BETWEEN.items()},
    }
