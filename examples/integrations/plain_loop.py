# SPDX-License-Identifier: BSD-3-Clause

"""A hand-written loop: bf16, two batches a step, saved after two steps and resumed."""

import tempfile

import torch
from torch import nn
from torch.nn import functional as F

# torch: from torch.utils.checkpoint import checkpoint
import remat_meta as remat  # remat


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Net(nn.Module):
    def __init__(self, words=256, width=128, depth=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))

    def forward(self, ids):
        x = self.embed(ids)
        for i, block in enumerate(self.blocks):
            # without: x = block(x)
            # torch: x = checkpoint(block, x, use_reentrant=False)
            x = remat.checkpoint(region_name=f"block{i}")(block)(x)  # remat
        return self.head(x)


def make():
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, steps):
    for _ in range(steps):
        for _ in range(2):
            ids = torch.randint(256, (4, 129))
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    model, optimizer = make()
    train(model, optimizer, 2)
    torch.save((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), f"{folder}/two_steps.pt")
    model, optimizer = make()
    weights, state, generator = torch.load(f"{folder}/two_steps.pt")
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    torch.set_rng_state(generator)
print(f"loss {train(model, optimizer, 2):.6f}")
