# SPDX-License-Identifier: BSD-3-Clause

"""PEFT's LoRA on a frozen base, trained by the Trainer of Transformers: two batches a step."""

import tempfile

import peft
import torch
import transformers as hf

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat

torch.manual_seed(0)
config = hf.LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
)  # fmt: skip
adapters = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
model = peft.get_peft_model(hf.LlamaForCausalLM(config), adapters)
ids = torch.randint(256, (32, 128))
with tempfile.TemporaryDirectory() as folder:
    arguments = hf.TrainingArguments(
        output_dir=folder,
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        activation_checkpointing=True,  # checkpoint
        learning_rate=0.01,
        use_cpu=True,
        seed=5,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    rows = [{"input_ids": row, "labels": row} for row in ids]
    print(f"loss {hf.Trainer(model=model, args=arguments, train_dataset=rows).train().training_loss:.6f}")
