# SPDX-License-Identifier: BSD-3-Clause

"""`with` blocks that random programs open, with their weights."""

from .devices import ON_CUDA

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


ON_DEVICES = {
    "with torch.cuda.device(second())": 2,
    "with side(0)": 3,
    "with side(1)": 2,
    "with save_on_cpu(pin_memory=True)": 1,
}


def on_cuda(head):
    return head.replace('"cpu"', '"cuda"').replace("torch.autograd.graph.save_on_cpu", "save_on_cpu")


def heads_of(words):
    heads = {on_cuda(head) if ON_CUDA else head: weight for head, weight in ALWAYS.items()}
    if ON_CUDA and "devices" in words:
        heads |= ON_DEVICES
    for name, more in FOREIGN.items():
        heads |= more if name in words else {}
    return heads
