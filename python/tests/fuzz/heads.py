# SPDX-License-Identifier: BSD-3-Clause

"""Blocks that random programs open, with their weights."""

ALWAYS = {
    "with torch.no_grad()": 3,
    "with torch.enable_grad()": 1,
    'with torch.autocast("cpu", dtype=torch.bfloat16)': 4,
    "with clones()": 2,
    "with torch.autograd.graph.save_on_cpu()": 1,
    "with contextlib.suppress(Raises)": 2,
}
FOREIGN = {
    "hooks inside": {"with api.torch_pair(INSIDE)": 2, "with api.own_pair(INSIDE)": 2},
    "modes": {"with PassThrough()": 2, "with Functions()": 1, "with flops()": 2, "with comm_debug()": 1},
}


def heads_of(words):
    heads = dict(ALWAYS)
    for name, more in FOREIGN.items():
        heads |= more if name in words else {}
    return heads
