# SPDX-License-Identifier: BSD-3-Clause

"""Trains a model within a budget beside an equal model without a budget, and compares every bit."""

import copy
import gc

import torch
from residual_block import Block
from same import DEVICE, default_generator, generator_of
from torch import nn
from torch.nn import functional as F

import remat_meta as remat

MEASURED = 3  # measured steps before there is a plan


class Net(nn.Module):
    """A network of which the first `depth` blocks run; a relu follows block number `relu_at`."""

    def __init__(self, depth=6, width=32):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.batch_norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 10)
        self.depth = depth
        self.relu_at = None

    def forward(self, x):
        for i, block in enumerate(self.blocks[: self.depth]):
            x = block(x)
            if i == self.relu_at:
                x = x.relu() * 1.5
        x = self.batch_norm(x.flatten(0, 1)).view_as(x)
        return {"logits": self.head(x), "kind": "text"}


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x)["logits"].flatten(0, 1), y.flatten())


def batch_of(length=16, seed=0):
    draw = generator_of(seed)
    return torch.randn(8, length, 32, generator=draw), torch.randint(0, 10, (8, length), generator=draw)


class Trainer:
    """A model with its optimizer and its own random numbers, to train beside a plain one."""

    def __init__(self, model, set_to_none=True):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.set_to_none = set_to_none
        self.random = generator_of(7).get_state()

    def step(self, batch, run=loss_of, before=None):
        """Returns the loss and the peak bytes of a step."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        outer = default_generator().get_state()
        default_generator().set_state(self.random)
        if before is not None:
            before(self.model)
        gc.collect()
        with remat.MemoryMeter() as meter:
            loss = run(self.model, batch)
            loss.backward()
            value = loss.detach().clone()
            del loss
            peak = meter.peak_bytes(DEVICE)
        self.optimizer.step()
        self.random = default_generator().get_state()
        default_generator().set_state(outer)
        return value, peak

    def state(self):
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [*(p.detach() for p in self.model.parameters()), *self.model.buffers(), *gradients, self.random]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def trainers(budget="50%", model=None, **options):
    torch.manual_seed(3)
    model = model or Net()
    plain = Trainer(copy.deepcopy(model))
    return plain, Trainer(remat.auto_checkpoint(model, budget, **options))


def train(plain, planned, batches, **how):
    """Returns the peaks of both models, step by step."""
    peaks = []
    for batch in batches:
        expected, plain_peak = plain.step(batch, **how)
        got, peak = planned.step(batch, **how)
        assert torch.equal(expected, got)
        assert same(plain.state(), planned.state())
        peaks.append((plain_peak, peak))
    return peaks
