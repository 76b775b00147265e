# SPDX-License-Identifier: BSD-3-Clause

"""A torchvision ResNet has no switch for checkpoints, so its blocks are wrapped. BatchNorm's statistics are those of plain."""

import torch
from torch.nn import functional as F
from torchvision.models.resnet import BasicBlock, ResNet

# torch: from functools import partial; from torch.utils.checkpoint import checkpoint
import remat_meta as remat  # remat

torch.manual_seed(0)
model = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=10)
blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
for block in blocks:  # remat
    block.forward = remat.checkpoint(region_name="block")(block.forward)  # remat
# torch: for block in blocks: block.forward = partial(checkpoint, block.forward, use_reentrant=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(4):
    for _ in range(2):
        images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
        loss = F.cross_entropy(model(images), labels) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.6f}")
