# SPDX-License-Identifier: BSD-3-Clause

"""Small models of Hugging Face Transformers, with dropout wherever the configuration has one."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from harness import Case, any_output_region, call_stock_checkpoint, region
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert.modeling_albert import AlbertLayer

hf.logging.set_verbosity_error()

VOCABULARY, LENGTH, WIDTH = 61, 12, 32
DECODER = dict(
    vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=64, attention_dropout=0.1, use_cache=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
ENCODER = dict(
    vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=64,
)  # fmt: skip
EXPERTS = dict(output_router_logits=True, router_aux_loss_coef=0.02)
SEQ2SEQ = dict(
    vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, dropout=0.1, attention_dropout=0.1,
    use_cache=False,
)  # fmt: skip


def tokens():
    return torch.randint(4, VOCABULARY, (2, LENGTH))


def causal_batch():
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def masked_batch():
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, LENGTH - 4 :] = 0
    return {"input_ids": tokens(), "labels": tokens(), "attention_mask": mask}


def seq2seq_batch():
    return {"input_ids": tokens(), "labels": tokens(), "decoder_input_ids": tokens()}


def image_batch():
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def wave_batch():
    return {"input_values": torch.randn(2, 1600), "labels": torch.tensor([0, 1])}


def spectrum_batch():
    return {"input_features": torch.randn(2, 8, 40), "labels": tokens()}


def whisper():
    config = hf.WhisperConfig(
        **SEQ2SEQ, num_mel_bins=8, max_source_positions=20, max_target_positions=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, activation_dropout=0.1,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config)


def wav2vec2():
    config = hf.Wav2Vec2Config(
        **(ENCODER | {"num_hidden_layers": 2}), conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 8),
        num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
        mask_time_prob=0.3, mask_time_length=2, layerdrop=0.0, classifier_proj_size=16,
    )  # fmt: skip
    return hf.Wav2Vec2ForSequenceClassification(config)


MODELS = {
    "gpt2": (
        lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=32, use_cache=False)
        ),
        causal_batch,
    ),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), masked_batch),
    "qwen3": (lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**DECODER)), causal_batch),
    "bert": (lambda: hf.BertForMaskedLM(hf.BertConfig(**ENCODER)), masked_batch),
    "roberta": (lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**ENCODER)), masked_batch),
    "albert": (
        lambda: hf.AlbertForMaskedLM(
            hf.AlbertConfig(
                **ENCODER, embedding_size=16, num_hidden_groups=1, inner_group_num=2,
                hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
            )
        ),
        masked_batch,
    ),
    "t5": (
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.1,
                decoder_start_token_id=0, use_cache=False,
            )
        ),
        seq2seq_batch,
    ),
    "bart": (
        lambda: hf.BartForConditionalGeneration(
            hf.BartConfig(**SEQ2SEQ, max_position_embeddings=64, activation_dropout=0.1, pad_token_id=1)
        ),
        seq2seq_batch,
    ),
    "mixtral": (
        lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**DECODER, **EXPERTS, num_local_experts=4, num_experts_per_tok=2)
        ),
        causal_batch,
    ),
    "qwen3_moe": (
        lambda: hf.Qwen3MoeForCausalLM(
            hf.Qwen3MoeConfig(**DECODER, **EXPERTS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
        ),
        causal_batch,
    ),
    "mamba": (
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(
                vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=8, num_hidden_layers=2, conv_kernel=4,
                use_cache=False,
            )
        ),
        causal_batch,
    ),
    "vit": (
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, image_size=16,
                patch_size=4, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=3,
            )
        ),
        image_batch,
    ),
    "wav2vec2": (wav2vec2, wave_batch),
    "whisper": (whisper, spectrum_batch),
}  # fmt: skip


def is_block(module):
    return isinstance(module, (GradientCheckpointingLayer, AlbertLayer))


def is_attention(module):
    return type(module).__name__.endswith(("Attention", "Mixer"))


def loss_of(model, batch):
    return model(**batch).loss


def case(name):
    build, batch = MODELS[name]
    return Case(
        model=build,
        batch=batch,
        loss=loss_of,
        blocks=is_block,
        saved=is_attention,
        # Wav2Vec2's model draws a mask with numpy before its encoder.
        backbone=lambda model: model.wav2vec2.encoder if name == "wav2vec2" else model.base_model,
        enable=call_stock_checkpoint(is_block)
        if name == "albert"
        else lambda model: model.activation_checkpointing_enable(),
        region=any_output_region if name == "t5" else region,
    )


CASES = {name: case(name) for name in MODELS}
