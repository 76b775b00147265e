# SPDX-License-Identifier: BSD-3-Clause

"""Lightning: bf16-mixed, two batches a step, stopped after two steps and resumed from the checkpoint."""

import tempfile

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.nn import functional as F

# torch: from torch.utils.checkpoint import checkpoint
import remat_meta as remat  # remat


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(128) for _ in range(4))

    def training_step(self, batch, _):
        (x,) = batch
        for block in self.blocks:
            # without: x = block(x)
            # torch: x = checkpoint(block, x, use_reentrant=False)
            x = remat.checkpoint(region_name="block")(block)(x)  # remat
        self.loss = x.square().mean()
        return self.loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(model, folder, steps, resume_from=None):
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=steps, precision="bf16-mixed", accumulate_grad_batches=2, default_root_dir=folder,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    rows = torch.utils.data.TensorDataset(torch.randn(8 * 512, 128, generator=torch.Generator().manual_seed(3)))
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=512), ckpt_path=resume_from)
    return trainer


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    saved = f"{folder}/two_steps.ckpt"
    train(Net(), folder, 2).save_checkpoint(saved)
    model = Net()
    train(model, folder, 4, saved)
print(f"loss {model.loss.item():.6f}")
