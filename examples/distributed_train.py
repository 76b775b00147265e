# SPDX-License-Identifier: BSD-3-Clause

"""Trains a small Llama on several ranks, with a checkpoint around each of its layers.

    torchrun --standalone --nproc-per-node 2 examples/distributed_train.py --tp 2 --checkpoint none
    torchrun --standalone --nproc-per-node 2 examples/distributed_train.py --tp 2 --checkpoint function

Both commands print the same losses, digests of gradients and collectives. The model is a small version of torchtitan's, and is
distributed in torchtitan's order: pipeline stages, tensor parallelism within stages, the checkpoint, and FSDP around it.
"""

import argparse
import collections
import functools
import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.utils.checkpoint import checkpoint as torch_checkpoint

import remat_meta as remat


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.head_width = width // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, angles):
        # The size -1 becomes the number of heads; with tensor parallelism, of the heads on this rank.
        q, k, v = (w(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


def rotate(x, angles):
    """Rotary position embedding: rotates pairs of channels by `angles` of shape (sequence, head_width / 2)."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.w2 = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.ffn_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width)

    def forward(self, x, angles):
        h = x + self.attention(self.attention_norm(x), angles)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """A Llama, or a stage of one: `layers` are the indices of its layers among `depth` in all."""

    def __init__(self, depth=3, width=32, heads=4, vocabulary=64, sequence=16, layers=None):
        super().__init__()
        layers = range(depth) if layers is None else layers
        self.embeddings = nn.Embedding(vocabulary, width) if 0 in layers else None
        self.layers = nn.ModuleDict({str(i): Layer(width, heads) for i in layers})
        self.norm = nn.RMSNorm(width) if depth - 1 in layers else None
        self.output = nn.Linear(width, vocabulary, bias=False) if depth - 1 in layers else None
        pairs = width // heads // 2
        self.register_buffer("angles", torch.outer(torch.arange(sequence), 10000.0 ** -(torch.arange(pairs) / pairs)))

    def forward(self, x):
        x = self.embeddings(x) if self.embeddings else x
        for layer in self.layers.values():
            x = layer(x, self.angles)
        return self.output(self.norm(x)) if self.output else x

def apply_tensor_parallel(model, mesh):
    """Splits activations between layers along the sequence, and attention and feed forward along their channels."""
    columns, split, gathered = parallel.ColwiseParallel(), parallel.SequenceParallel(), parallel.PrepareModuleInput
    rows = parallel.RowwiseParallel(output_layouts=Shard(1))
    whole = {
        "embeddings": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": split,
        "output": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallel.parallelize_module(model, mesh, {name: plan for name, plan in whole.items() if getattr(model, name)})
    plan = {
        "attention_norm": split,
        "attention": gathered(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        **dict.fromkeys(("attention.wq", "attention.wk", "attention.wv"), columns),
        "attention.wo": rows,
        "ffn_norm": split,
        "feed_forward": gathered(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        **dict.fromkeys(("feed_forward.w1", "feed_forward.w3"), columns),
        "feed_forward.w2": rows,
    }
    for layer in model.layers.values():
        parallel.parallelize_module(layer, mesh, plan)


def apply_checkpoint(model, kind, policy=None):
    for layer in model.layers.values():
        if kind == "torch":
            layer.forward = functools.partial(torch_checkpoint, layer.forward, use_reentrant=False)
        else:
            layer.forward = remat.checkpoint(replay=kind, policy=policy)(layer.forward)


def apply_fsdp(model, mesh):
    """Shards each layer, then the rest of the model. FSDP wraps the layer, so also the checkpoint, which is its forward."""
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def build(options, mesh, layers, device):
    model = Llama(options.depth, layers=layers).to(device)
    if options.tp > 1:
        apply_tensor_parallel(model, mesh["tp"])
    if options.checkpoint != "none":
        apply_checkpoint(model, options.checkpoint, options.policy)
    if options.fsdp > 1:
        apply_fsdp(model, mesh["fsdp"])
    return model

def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def step_of(options, mesh, model, device):
    """Returns a function of a batch that runs forward and backward of a pipeline stage or of the whole model."""

    def whole(tokens, targets):
        loss = loss_of(model(tokens), targets)
        loss.backward()
        return loss

    def microbatches(tokens, targets):
        losses = []
        schedule.step(*([tokens] if stage.is_first else []), target=targets if stage.is_last else None, losses=losses)
        return torch.stack(losses).mean() if losses else torch.zeros((), device=device)

    if options.pp == 1:
        return whole
    group = mesh["pp"].get_group()
    stage = pipelining.PipelineStage(model, group.rank(), options.pp, device, group=group)
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=options.batch, loss_fn=loss_of)
    return microbatches


def digest_of_gradients(model):
    """Returns a digest of the local gradients of all ranks. Two runs have the same digest if all bits are the same."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        digest.update(gradient.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    dist.all_gather_object(digests := [None] * dist.get_world_size(), digest.hexdigest())
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def executed_collectives(profile, backend):
    """Counts the collectives that the backend ran on this rank: {"all_reduce": 2, ...}."""
    names = (event.name.removeprefix(f"{backend}:") for event in profile.events() if event.name.startswith(f"{backend}:"))
    return dict(sorted(collections.Counter(names).items()))


def train(options, backend, device):
    """Prints losses and digests. Returns for each rank the collectives of the last step and the most bytes that regions kept."""
    mesh = init_device_mesh(device.type, (options.pp, options.fsdp, options.tp), mesh_dim_names=("pp", "fsdp", "tp"))
    stage, share = mesh.get_local_rank("pp"), mesh.get_local_rank("fsdp")
    torch.manual_seed(stage)  # same weights on the ranks of a stage
    model = build(options, mesh, torch.arange(options.depth).chunk(options.pp)[stage].tolist(), device)
    step = step_of(options, mesh, model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    batches = torch.Generator().manual_seed(share)  # same batch on ranks with the same position in the FSDP mesh dimension
    kept = []  # bytes held by all regions, after each call of a layer
    for layer in model.layers.values():
        layer.register_forward_hook(lambda *_: kept.append(remat.memory_report().bytes))
    for i in range(options.steps):
        text = torch.randint(64, (options.batch, 17), generator=batches).to(device)
        optimizer.zero_grad()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            loss = step(text[:, :-1].contiguous(), text[:, 1:].contiguous())
            time.sleep(0.02)  # gloo ends the profiler's event only after it has completed the future that the step waits for
        digest = digest_of_gradients(model)
        optimizer.step()
        dist.all_reduce(loss := loss.detach() / (options.fsdp * options.tp))
        if dist.get_rank() == 0:
            print(f"step {i}  loss {loss.item():.6f}  gradients {digest}", flush=True)
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, (executed_collectives(profile, backend), max(kept)))
    return of_ranks


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdp", type=int, default=1, help="ranks that share the weights of a stage")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--pp", type=int, default=1, help="stages of the pipeline")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4, help="rows of each batch; with --pp, each is a microbatch")
    parser.add_argument("--depth", type=int, default=4, help="layers in all")
    parser.add_argument("--checkpoint", choices=("none", "function", "tape", "auto", "torch"), default="function")
    parser.add_argument("--policy", help='of the regions: "save_matmuls", or any preset of docs/how-to/policies.md')
    options = parser.parse_args(arguments)
    if options.policy and options.checkpoint in ("none", "torch"):
        parser.error("--policy: expected --checkpoint function, tape or auto, which have one")
    return options


def main():
    options = parse()
    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(backend := "nccl" if cuda else "gloo")
    if options.fsdp * options.tp * options.pp != dist.get_world_size():
        raise SystemExit(f"expected --fsdp * --tp * --pp to be the {dist.get_world_size()} ranks that torchrun has started")
    of_ranks = train(options, backend, device)
    if dist.get_rank() == 0:
        for rank, (collectives, kept_bytes) in enumerate(of_ranks):
            print(f"rank {rank}  collectives of the last step {collectives}  kept by regions {kept_bytes} B")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
