# SPDX-License-Identifier: BSD-3-Clause

"""Steps that foreign programs contain: complex numbers, library ops that write arguments which their schema does not mark, ops
that write a tensor that they save, wrapper subclasses."""

import dataclasses

from .changes import CHANGES
from .jagged import JAGGED
from .named import NAMED
from .op import Op

RARE = 0.002

COMPLEX = {
    "complex_scale": Op("{r} = (torch.complex({a}, {b}) * (0.5 + 0.25j)).real", weight=1),
    "complex_lerp": Op("{r} = torch.lerp(torch.complex({a}, {b}), torch.complex({b}, {a}), 0.3 - 0.2j).imag", weight=1),
    "complex_pad": Op(
        "{r} = torch.constant_pad_nd(torch.complex({a}, {b}), (1, 0, 0, 1), 0.5 - 1j)[1:, :4].clone().abs()", weight=1
    ),
    "complex_fill": Op("{r} = torch.complex({a}, {b}).index_fill(0, torch.tensor([1]), 0.5j).real.clone()", weight=1),
    "complex_add": Op("{r} = torch.add(torch.complex({a}, {b}), {b}, alpha=0.5j).imag * 1.0", weight=1),
    "complex_matmul": Op("z = torch.complex({a}.tanh(), {b}.tanh())\n{r} = (z @ z.mH).real", weight=1),
    "complex_convolution": Op(
        "{r} = F.conv2d(torch.complex({a}, {b})[None, None], torch.complex(w0, w1)[None, None, :3, :3],"
        " padding=1)[0, 0].real", weight=1
    ),
    "complex_fourier": Op("{r} = torch.fft.fft({a}, dim=1).imag", weight=1),
    "complex_conjugate": Op("{r} = torch.complex({a}, {b}).conj().imag", weight=1),
    "complex_where": Op("{r} = torch.where({a} > 0.1, torch.complex({a}, {b}), 0.5j).real", weight=1),
    "complex_full": Op("{r} = ({a} * torch.full((4, 4), 0.5 + 0.5j)).real", weight=1),
    "complex_item": Op("{r} = ({a} * torch.complex({a}, {b}).detach().nan_to_num().sum().sgn().item()).imag", weight=1),
    "complex_fresh_": Op("z = torch.complex({a}, {b})\nz.mul_(1j).add_({a}, alpha=0.5j)\n{r} = z.real", weight=1),
    "complex_": Op("torch.view_as_complex({a}.reshape(4, 2, 2)).mul_(0.5 + 0.5j)", results=0, writes=True, weight=1),
    "read_complex": Op("{r} = ({a} * ({c} + 0.5j)).real", buffer=1, of="c", weight=1),
    "write_complex": Op(
        "{c}.mul_(0.5j).add_(torch.complex({a}.detach(), {a}.detach()))", results=0, buffer=2, of="c", weight=1
    ),
}  # fmt: skip

# The kernels are in kinds.py, with schemas in which only scale_marked marks its arguments. A region refuses the others, so they
# are rare.
LIBRARY = {
    # Does not write {a} itself: under a dispatch mode {a} gets no new version, so plain autograd would miss the write.
    "library_marked_": Op("{r} = {a} * 1.0\ntorch.ops.fuzz.scale_marked({r}, [{b}.detach().clone()], 0.9)"),
    "library_marked_buffer": Op("torch.ops.fuzz.scale_marked(x2.detach().clone(), [{c}], 0.9)", results=0, buffer=2),
    "library_": Op("torch.ops.fuzz.scale({a}, 0.9)", results=0, writes=True, weight=RARE),
    "library_list_": Op("torch.ops.fuzz.scale_all([{a}], 0.9)", results=0, writes=True, weight=RARE),
    "library_lists_": Op("torch.ops.fuzz.scale_lists([[{a}]], 0.9)", results=0, writes=True, weight=RARE),
    "library_fill_": Op("{r} = {b} + torch.ops.fuzz.fill({a}, {b}.detach())", writes=True, weight=RARE),
    "library_fresh_": Op("{r} = {a}.detach().clone()\ntorch.ops.fuzz.scale({r}, 0.7)\n{r} = {r} * {b}", weight=RARE),
    "library_read": Op("{r} = {a} * torch.ops.fuzz.mix([{a}.detach(), {b}.detach()])"),
    "library_buffer": Op("torch.ops.fuzz.scale({c}, 0.9)", results=0, buffer=2, weight=RARE),
    "library_buffers": Op("torch.ops.fuzz.scale_all([{c}], 0.9)", results=0, buffer=2, weight=RARE),
    "library_fill_buffer": Op("{r} = {a} * torch.ops.fuzz.fill({c}, {a}.detach())", buffer=2, weight=RARE),
    # Writes through a pointer, which no version shows.
    "library_unseen_": Op("torch.ops.fuzz.scale_unseen({a}, 0.9)", results=0, writes=True, needs="unseen writes", weight=RARE),
    "library_unseen_buffer": Op("torch.ops.fuzz.scale_unseen({c}, 0.9)", results=0, buffer=2, needs="unseen writes", weight=RARE),
    "library_unseen_fresh_": Op(
        "{r} = {a}.detach().clone()\ntorch.ops.fuzz.scale_unseen({r}, 0.7)\n{r} = {r} * {b}", needs="unseen writes", weight=RARE
    ),
}

# Ops that write a tensor that they save.
WRITE_SAVED = {
    "rrelu_training": Op("{r} = F.rrelu({a}, 0.1, 0.3, True)", "a", weight=4, late=True),
    "rrelu_training_": Op("F.rrelu({a}, 0.1, 0.3, True, inplace=True)", "a", results=0, writes=True, late=True),
    "feature_dropout": Op("{r} = F.feature_alpha_dropout({a}, 0.4, True)", weight=1),
    "fractional_pool": Op("{r} = F.fractional_max_pool2d({a}.repeat(2, 2)[None], 2, (4, 4))[0]", weight=1),
    "log_sigmoid": Op("{r} = F.logsigmoid({a})", "a", weight=1),
    "embedding_norm": Op(
        "{r} = {a} * F.embedding(torch.arange(4), {c}, max_norm=0.7)", "a", buffer=2, weight=1
    ),
    "renorm_": Op("{a}.renorm_(2, 0, 0.9)", "a", results=0, writes=True, weight=1),
}

# A buffer whose parts regions read and write.
BANK = {
    "read_bank": Op("{r} = {a} * ({c}[{i}] + 0.5)", buffer=1, of="k"),
    "read_whole_bank": Op("{r} = {a} + {c}.sum(0)", buffer=1, of="k", weight=1),
    "write_bank": Op("{c}[{i}] = {a}.detach()", results=0, buffer=2, of="k", weight=3),
    "write_bank_row": Op("{c}[{i}, 1:3] = {a}.detach()[:2]", results=0, buffer=2, of="k"),
    "write_bank_column": Op("{c}[{i}:, :, 2].mul_(0.5).add_({a}.detach()[0].tanh())", results=0, buffer=2, of="k", weight=1),
    "write_column": Op("{c}[:, 2].mul_(0.5).add_({a}.detach()[:, 1])", results=0, buffer=2),
}  # fmt: skip

WRAPPERS = {
    "read_wrapped": Op("{r} = {a} * unwrap({c} + 0.5)", buffer=1, of="t", weight=1),
    "write_wrapped": Op("{c}.mul_(0.5).add_({a}.detach().tanh())", results=0, buffer=2, of="t", weight=RARE),
    "write_wrapped_row": Op("{c}[1] = {a}.detach()[0]", results=0, buffer=2, of="t", weight=RARE),
    "wrapped_weight": Op("{r} = unwrap(wrap(Flat, {a}).float() @ p0.tanh()).float()", "a", weight=RARE, needs="made wrappers"),
    "wrapped_opaque": Op("{r} = unwrap(wrap(Opaque, {a}).float() * p1.tanh()).float()", "a", weight=RARE, needs="made wrappers"),
    "plain_and_wrapped": Op("{r} = unwrap({a} * p0 + {a} * p1).float()", "a", weight=1),
    "wrap_flat": Op("{r} = wrap(Flat, {a})", weight=RARE, needs="made wrappers"),
    "wrap_opaque": Op("{r} = wrap(Opaque, {a})", weight=RARE, needs="made wrappers"),
    "unwrap": Op("{r} = unwrap({a})", view=True, weight=RARE, needs="made wrappers"),
}  # fmt: skip

COMPUTING = {
    "read_computing": Op("{r} = {a} * F.linear({a}.detach(), {c})", buffer=1, of="q", weight=1),
    "read_computing_row": Op("{r} = {a} + {c}[1]", buffer=1, of="q", weight=1),
    "write_computing": Op("{c}.inner.mul_(0.5).add_({a}.detach().tanh())", results=0, buffer=2, of="q", weight=RARE),
}


HOST = {
    "read_host": Op("{r} = {a} * torch.ops.fuzz.place({c})", buffer=1, of="h", weight=1),
    "read_host_rows": Op("{r} = {a} + torch.ops.fuzz.place({c}[{i} % 3:])[0]", buffer=1, of="h", weight=1),
    "save_host": Op("{r} = {a} * {c}", buffer=1, of="h", weight=1),
    "write_host": Op("{c}.mul_(0.5).add_({a}.detach().tanh())", results=0, buffer=2, of="h", weight=1),
    "write_host_row": Op("{c}[1] = {a}.detach()[0]", results=0, buffer=2, of="h", weight=1),
}


def _with_needs(ops, needs):
    return {kind: dataclasses.replace(op, needs=op.needs or needs) for kind, op in ops.items()}


FOREIGN = {
    **_with_needs(COMPLEX, "complex"),
    **_with_needs(LIBRARY, "library"),
    **_with_needs(WRITE_SAVED, "write saved"),
    **_with_needs(BANK, "bank"),
    **_with_needs(WRAPPERS, "wrappers"),
    **_with_needs(COMPUTING, "computing wrappers"),
    **_with_needs(HOST, "host memory"),
    **_with_needs(CHANGES, "changes"),
    # The weight of these is 0, so that programs that were chosen without them stay the same.
    **{kind: dataclasses.replace(op, needs="jagged", weight=0) for kind, op in JAGGED.items()},
    **{kind: dataclasses.replace(op, needs="named functions", weight=0) for kind, op in NAMED.items()},
}
