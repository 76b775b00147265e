# SPDX-License-Identifier: BSD-3-Clause

"""A ViT of timm, checkpointed by its own switch: bf16, two batches a step."""

import timm
import torch
from torch.nn import functional as F

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat

torch.manual_seed(0)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=64, patch_size=8, embed_dim=96, depth=4, num_heads=4, num_classes=10,
    drop_rate=0.1, drop_path_rate=0.1,
)  # fmt: skip
model.set_grad_checkpointing()  # checkpoint
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    for _ in range(2):
        images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images), labels) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.6f}")
