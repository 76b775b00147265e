# SPDX-License-Identifier: BSD-3-Clause

"""torchtitan's Llama 3 with its own activation checkpointing of each layer: bf16, two batches a step.

Needs torchtitan 0.2: docs/how-to/integrations.md. Its trainer is not started here, since it needs GPUs.
"""

import torch
from torch.nn import functional as F
from torchtitan.config.job_config import ActivationCheckpoint
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.llama3 import Transformer, TransformerModelArgs

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat

torch.manual_seed(0)
model = Transformer(TransformerModelArgs(dim=128, n_layers=4, n_heads=4, vocab_size=256, max_seq_len=128))
with torch.no_grad():
    model.init_weights()
apply_ac(model, ActivationCheckpoint(mode="full"))  # checkpoint
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    for _ in range(2):
        ids = torch.randint(256, (4, 129))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.6f}")
