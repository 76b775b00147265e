# SPDX-License-Identifier: BSD-3-Clause

"""The ways of checkpointing that benchmarks compare, the models that they run, timing jobs in turns, and printing tables."""

import argparse
import functools
import gc
import importlib
import importlib.util
import statistics
import time
import warnings

import torch
import torch.nn.functional as F
from torch.utils import checkpoint as torch_checkpoint

clock = time.thread_time_ns


def parser_of(description):
    """Makes this process use one thread and show no warnings. Returns the program's argument parser."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def print_heads(heads):
    print_row(heads)
    print("|---" * len(heads) + "|")


# By policy: the parts of a block that are saved, and those of them whose results the replay reads.
PARTS = {
    "full": ((), ()),
    "matmul": (("qkv", "proj", "fc1", "fc2"), ("qkv", "proj", "fc1")),
    "attn": (("sdpa",), ("sdpa",)),
    "allbutpw": (("ln1", "qkv", "sdpa", "proj", "ln2", "fc1", "fc2"), ("proj", "fc1")),
}


class Peer:
    """Plain PyTorch, and the interface of the other peers."""

    name = "plain"
    policies = {"full": set()}  # the policies that the peer can express

    def set_policy(self, policy):
        """Says which ops later checkpoints save, for peers that choose by op. `policy`: a key of POLICIES, "none" or None."""

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
    """Torch's selective checkpointing, which saves the ops of a list."""

    name = "sac"
    policies = {
        "full": set(),
        "matmul": _MATMULS,
        "attn": _ATTENTION,
        "allbutpw": _MATMULS | _ATTENTION | {_ATEN.native_layer_norm.default},
    }

    def set_policy(self, policy):
        self.ops = self.policies[policy]

    def checkpoint(self, fn, name):
        ops = self.ops

        def policy(context, op, *args, **kwargs):
            kinds = torch_checkpoint.CheckpointPolicy
            return kinds.MUST_SAVE if op in ops else kinds.PREFER_RECOMPUTE

        contexts = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, policy)
        return functools.partial(torch_checkpoint.checkpoint, fn, use_reentrant=False, context_fn=contexts)


class Regions(Peer):
    """Checkpoints of a module with torch_remat's API: torch_remat or remat_meta. Each call of a part makes a new named call."""

    policies = PARTS

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
    """Runs `jobs`, {key: function that returns a tuple}, `rounds` times after a warm-up round. Returns {key: list of its tuples}.
    The jobs take turns in an order that rotates. Garbage is collected before each call."""
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
    """Returns the median over rounds of the ratio of ours to plain. `i`: the position in the tuples of run_jobs()."""
    return statistics.median(a[i] / b[i] for a, b in zip(ours, plain, strict=True))


def timed(forward, seed=None, repeats=3):
    """Returns a function that runs `repeats` steps and returns the median nanoseconds of the forwards and of the backwards."""

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


def same(left, right):
    """Says whether two lists of tensors have the same values."""
    return len(left) == len(right) and all(map(torch.equal, left, right))


def gradients(forward, seed, leaves):
    for leaf in leaves:
        leaf.grad = None
    forward().backward(seed)
    return [leaf.grad.clone() for leaf in leaves]


def call(name, fn, *args):
    return fn(*args)


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Block(torch.nn.Module):
    """A block of a GPT-2. forward() calls each part as run(name, part, *arguments), so that a caller can save parts."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.norm, self.other_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.drop = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x, run=call):
        qkv = run("qkv", self.qkv, run("ln1", self.norm, x))
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1))
        x = x + self.drop(run("proj", self.out, run("sdpa", attend, q, k, v)))
        hidden = F.gelu(run("fc1", self.up, run("ln2", self.other_norm, x)), approximate="tanh")
        return x + self.drop(run("fc2", self.down, hidden))


class Gpt(torch.nn.Module):
    """A GPT-2."""

    def __init__(self, width, heads, length, layers, vocabulary, dropout=0.0):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)

    def loss(self, calls, tokens):
        """Returns the loss. `calls`: one function for each block, which runs the block."""
        x = functools.reduce(lambda x, call: call(x), calls, self.tokens(tokens) + self.positions.weight)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def checkpointed_gpt(shape, peer, policy):
    """Returns a function without arguments that computes the loss of a GPT, and the GPT's parameters. Each block is a
    checkpoint, unless `policy` is "none"."""
    torch.manual_seed(0)
    width, heads, length, batch, layers, vocabulary = shape
    model = Gpt(width, heads, length, layers, vocabulary)
    tokens = torch.randint(0, vocabulary, (batch, length))
    saved, needed = PARTS.get(policy, ((), ()))

    def run(name, fn, *args):
        if name not in saved:
            return fn(*args)
        y = peer.save_region(fn, name)(*args)
        if name in needed:
            peer.needs_tensor(y)
        return y

    peer.set_policy(policy)
    calls = [functools.partial(block, run=run) for block in model.blocks]
    if policy != "none":
        calls = [peer.checkpoint(call, f"layers.{i}") for i, call in enumerate(calls)]
    return functools.partial(model.loss, calls, tokens), list(model.parameters())
