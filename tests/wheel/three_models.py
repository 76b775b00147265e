# SPDX-License-Identifier: BSD-3-Clause

"""Trains three models of Transformers plainly and on remat, by the library's own switch, in whatever Python and torch run
this; exits with 1 unless every bit is the same. Nothing of the source tree is imported."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf

import remat_meta as remat

hf.logging.set_verbosity_error()
SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4)


def tokens():
    return torch.randint(4, 61, (2, 12))


def gpt2():
    config = hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=32, use_cache=False)
    return hf.GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()}


def bert():
    config = hf.BertConfig(**SMALL, vocab_size=61, max_position_embeddings=64)
    return hf.BertForMaskedLM(config), {"input_ids": tokens(), "labels": tokens()}


def vit():
    config = hf.ViTConfig(**SMALL, image_size=16, patch_size=4)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def trained(make, checkpointed):
    """Two steps with dropout: losses, parameters, gradients and the generator, and how many regions were alive."""
    torch.manual_seed(0)
    model, batch = make()
    model.train()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, regions = [], 0
    for _ in range(2):
        loss = model(**batch).loss
        regions = max(regions, remat._C.live_region_count())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *model.parameters(), *(p.grad for p in model.parameters()), torch.get_rng_state()], regions


def main():
    torch.set_num_threads(1)
    for make in (gpt2, bert, vit):
        plain, _ = trained(make, checkpointed=False)
        with remat.patch_torch_checkpoint():
            got, regions = trained(make, checkpointed=True)
        same = all(torch.equal(a, b) for a, b in zip(plain, got, strict=True))
        print(f"{make.__name__}: {regions} regions, {'bitwise' if same else 'DIFFERS'}")
        if not same or not regions:
            sys.exit(1)


if __name__ == "__main__":
    main()
