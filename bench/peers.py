# SPDX-License-Identifier: BSD-3-Clause

"""Ways of checkpointing that benchmarks compare, what they run, and a runner that takes their samples in turns."""

import functools
import gc
import importlib
import importlib.util
import statistics
import time

import torch
import torch.nn.functional as F
from torch.utils import checkpoint as torch_checkpoint

clock = time.thread_time_ns


class Peer:
    """Plain PyTorch, and the interface of the other peers."""

    name = "plain"
    has_regions = False  # True if parts of a checkpoint can be saved by name

    def set_policy(self, policy):
        """Selects the ops that checkpoints save, for peers that choose by op."""

    def checkpoint(self, fn, name):
        return fn

    def save_region(self, fn, name):
        return fn

    def needs_tensor(self, tensor):
        """Says that recomputed code reads a saved result, for peers that must be told."""


class TorchCheckpoint(Peer):
    def __init__(self, name, **options):
        self.name, self.options = name, options

    def checkpoint(self, fn, name):
        return functools.partial(torch_checkpoint.checkpoint, fn, **self.options)


_ATEN = torch.ops.aten
_MATMULS = {_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default}
_ATTENTION = {_ATEN._scaled_dot_product_flash_attention_for_cpu.default}


class Selective(Peer):
    """Torch's selective checkpointing: by lists of ops where a policy is set, else by a flag that save_region sets."""

    name = "sac"
    has_regions = True
    LISTS = {
        "full": set(),
        "matmul": _MATMULS,
        "attn": _ATTENTION,
        "allbutpw": _MATMULS | _ATTENTION | {_ATEN.native_layer_norm.default},
    }

    def __init__(self):
        self.ops, self.depth = None, 0

    def set_policy(self, policy):
        self.ops = self.LISTS.get(policy)

    def checkpoint(self, fn, name):
        ops = self.ops

        def policy(context, op, *args, **kwargs):
            is_saved = self.depth > 0 if ops is None else op in ops
            kinds = torch_checkpoint.CheckpointPolicy
            return kinds.MUST_SAVE if is_saved else kinds.PREFER_RECOMPUTE

        contexts = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, policy)
        return functools.partial(torch_checkpoint.checkpoint, fn, use_reentrant=False, context_fn=contexts)

    def save_region(self, fn, name):
        if self.ops is not None:
            return fn

        def run(*args):
            self.depth += 1
            try:
                return fn(*args)
            finally:
                self.depth -= 1

        return run


class Regions(Peer):
    """remat_meta, torch_remat, and any module with their API. Each call of a part makes a new named call."""

    has_regions = True

    def __init__(self, name, module, **options):
        self.name, self.module, self.options = name, importlib.import_module(module), options
        self.needs_tensor = self.module.recompute_needs_tensor

    def checkpoint(self, fn, name):
        return self.module.checkpoint(region_name=name, **self.options)(fn)

    def save_region(self, fn, name):
        return self.module.region(fn, name, recompute=False)


def has_torch_remat():
    return importlib.util.find_spec("torch_remat") is not None


def run_jobs(jobs, rounds):
    """Returns the samples of each of {key: function that returns a tuple of nanoseconds}. Jobs take turns, and the order
    rotates; garbage is collected between samples."""
    keys = list(jobs)
    samples = {key: [] for key in keys}
    for number in range(-1, rounds):
        first = (number * 3) % len(keys)
        for key in keys[first:] + keys[:first]:
            gc.collect()
            gc.disable()
            sample = jobs[key]()
            gc.enable()
            if number >= 0:
                samples[key].append(sample)
    return samples


def ratio(ours, plain, i):
    """Returns the median of the rounds' ratios of part `i`."""
    return statistics.median(a[i] / b[i] for a, b in zip(ours, plain, strict=True))


def timed(forward, seed=None, repeats=3):
    """Returns a function that takes steps and returns (nanoseconds of the forward, of the backward), medians."""

    def step():
        start = clock()
        y = forward()
        middle = clock()
        y.backward(seed)
        return middle - start, clock() - middle

    return lambda: tuple(statistics.median(part) for part in zip(*(step() for _ in range(repeats)), strict=True))


class Expert(torch.nn.Module):
    """An expert of a mixture, with SwiGLU."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def gradients(forward, seed, leaves):
    for leaf in leaves:
        leaf.grad = None
    forward().backward(seed)
    return [leaf.grad.clone() for leaf in leaves]


def chain_body(peer, mode, count):
    """Returns a function of `count` tiny ops, and its leaves. Modes: "recompute"; "save", each op a save region; "half", every
    second op a save region; "save1", one save region around all."""
    torch.manual_seed(0)
    a = (torch.rand(8) * 0.1 + 0.5).requires_grad_()
    b = torch.ones(8).requires_grad_()
    kinds = (lambda y: torch.add(y, a), lambda y: torch.mul(y, b), F.gelu)
    saves = {"save": lambda i: True, "half": lambda i: i % 2 == 1}.get(mode, lambda i: False)
    ops = [(f"op{i}", kinds[i % 3], saves(i)) for i in range(count)]

    def body(y):
        for name, op, is_saved in ops:
            if is_saved:
                y = peer.save_region(op, name)(y)
                peer.needs_tensor(y)
            else:
                y = op(y)
        return y

    return (lambda y: peer.save_region(body, "all")(y)) if mode == "save1" else body, (a, b)


class Block(torch.nn.Module):
    """A block of a GPT-2."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.norm, self.other_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.drop(self.out(attention))
        return x + self.drop(self.down(F.gelu(self.up(self.other_norm(x)), approximate="tanh")))


# By policy: the parts of a block that are saved, and those of them whose results the replay reads.
POLICIES = {
    "full": ((), ()),
    "full_tail": (("fc2", "tail"), ()),
    "matmul": (("qkv", "proj", "fc1", "fc2", "tail"), ("qkv", "proj", "fc1")),
    "attn": (("sdpa",), ("sdpa",)),
    "attn_tail": (("sdpa", "fc2", "tail"), ("sdpa",)),
    "allbutpw": (("ln1", "qkv", "sdpa", "proj", "ln2", "fc1", "fc2", "tail"), ("proj", "fc1")),
}


class GPT:
    """The blocks of a GPT-2 in functional form; each part of a block may be a save region, and each block is a checkpoint."""

    def __init__(self, shape, peer, policy):
        width, self.heads, length, batch, layers, vocabulary = shape
        generator = torch.Generator().manual_seed(0)

        def weight(*size):
            return (torch.randn(*size, generator=generator) * 0.02).requires_grad_()

        def block():
            ones = [torch.ones(width).requires_grad_() for _ in range(2)]
            return {
                "ln1": (ones[0], weight(width)), "qkv": (weight(3 * width, width), weight(3 * width)),
                "proj": (weight(width, width), weight(width)), "ln2": (ones[1], weight(width)),
                "fc1": (weight(4 * width, width), weight(4 * width)), "fc2": (weight(width, 4 * width), weight(width)),
            }  # fmt: skip

        self.embedding, self.positions = weight(vocabulary, width), weight(length, width)
        blocks = [block() for _ in range(layers)]
        self.norm = torch.ones(width).requires_grad_(), weight(width)
        self.params = [self.embedding, self.positions, *self.norm]
        self.params += [p for weights in blocks for pair in weights.values() for p in pair]
        self.tokens = torch.randint(0, vocabulary, (batch, length), generator=generator)
        self.targets = torch.randint(0, vocabulary, (batch * length,), generator=generator)
        peer.set_policy(policy)
        bodies = [self._body(weights, peer, *POLICIES.get(policy, ((), ()))) for weights in blocks]
        self.calls = [body if policy == "none" else peer.checkpoint(body, f"layers.{i}") for i, body in enumerate(bodies)]

    def _body(self, weights, peer, saved, needed):
        def run(name, fn, *args):
            if name not in saved:
                return fn(*args)
            y = peer.save_region(fn, name)(*args)
            if name in needed:
                peer.needs_tensor(y)
            return y

        def linear(name):
            return lambda x: F.linear(x, *weights[name])

        def norm(name):
            return lambda x: F.layer_norm(x, (x.shape[-1],), *weights[name])

        def attention(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

        def block(x):
            batch, length, width = x.shape
            qkv = run("qkv", linear("qkv"), run("ln1", norm("ln1"), x))
            q, k, v = qkv.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + run("proj", linear("proj"), run("sdpa", attention, q, k, v))
            hidden = F.gelu(run("fc1", linear("fc1"), run("ln2", norm("ln2"), x)))
            return run("tail", torch.add, x, run("fc2", linear("fc2"), hidden))

        return block

    def forward(self):
        x = F.embedding(self.tokens, self.embedding) + self.positions
        for call in self.calls:
            x = call(x)
        x = F.layer_norm(x, (x.shape[-1],), *self.norm)
        return F.cross_entropy(F.linear(x, self.embedding).flatten(0, 1), self.targets)
