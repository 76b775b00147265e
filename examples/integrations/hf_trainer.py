# SPDX-License-Identifier: BSD-3-Clause

"""The Trainer of Transformers: bf16, two batches a step, stopped after two steps and resumed from the checkpoint."""

import tempfile

import torch
import transformers as hf

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat


def make_model():
    config = hf.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, attention_dropout=0.1, use_cache=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def train(model, folder, steps, resume):
    arguments = hf.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        activation_checkpointing=True,  # checkpoint
        lr_scheduler_type="constant",
        bf16=True,
        use_cpu=True,
        save_steps=2,
        seed=5,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    ids = torch.randint(256, (32, 128), generator=torch.Generator().manual_seed(3))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    return hf.Trainer(model=model, args=arguments, train_dataset=rows).train(resume_from_checkpoint=resume)


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    train(make_model(), folder, steps=2, resume=False)
    model = make_model()  # its weights come from the checkpoint
    print(f"loss {train(model, folder, steps=4, resume=True).training_loss:.6f}")
