# SPDX-License-Identifier: BSD-3-Clause

"""A loop with accelerate: bf16, two batches a step, the training state saved after two steps and resumed."""

import tempfile

import torch
import transformers as hf
from accelerate import Accelerator

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat

BATCHES = torch.randint(256, (8, 4, 128), generator=torch.Generator().manual_seed(3))


def prepare():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    config = hf.GPT2Config(
        vocab_size=256, n_positions=128, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    model = hf.GPT2LMHeadModel(config)
    model.activation_checkpointing_enable()  # checkpoint
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def train(accelerator, model, optimizer, batches):
    model.train()
    for ids in batches:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    accelerator, model, optimizer = prepare()
    train(accelerator, model, optimizer, BATCHES[:4])
    accelerator.save_state(folder)
    accelerator, model, optimizer = prepare()
    accelerator.load_state(folder)
print(f"loss {train(accelerator, model, optimizer, BATCHES[4:]):.6f}")
