# SPDX-License-Identifier: BSD-3-Clause

"""trl's SFTTrainer, which checkpoints by default: bf16, two batches a step, LoRA.

Needs trl and datasets: docs/how-to/integrations.md.
"""

import tempfile

import datasets
import peft
import tokenizers
import torch
import transformers as hf
import trl

import remat_meta as remat  # remat

remat.patch_torch_checkpoint()  # remat

torch.manual_seed(0)
config = hf.LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
)  # fmt: skip
words = tokenizers.models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0")
tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), pad_token="w1", eos_token="w2")
ids = torch.randint(256, (32, 128))
with tempfile.TemporaryDirectory() as folder:
    arguments = trl.SFTConfig(
        output_dir=folder,
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        # without: gradient_checkpointing=False,
        learning_rate=0.01,
        bf16=True,
        use_cpu=True,
        seed=5,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    trainer = trl.SFTTrainer(
        model=hf.LlamaForCausalLM(config),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"input_ids": ids.tolist()}),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
    )
    print(f"loss {trainer.train().training_loss:.6f}")
model = trainer.model
