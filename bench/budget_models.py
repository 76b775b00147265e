# SPDX-License-Identifier: BSD-3-Clause

"""Models of a small but realistic size, for bench_auto_checkpoint.py: peaks of 5 to 200 MB, steps of 0.02 to 1 s on a core.
The smaller models of python/tests/models can be made by their names, too."""

import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

hf.logging.set_verbosity_error()

VOCABULARY = 1000


@dataclass
class Model:
    """A model, its batch and `call`, which computes the loss and which auto_checkpoint() wraps."""

    module: nn.Module
    batch: tuple[Any, ...]
    call: Any  # (module, batch) -> loss


def causal(module, batch):
    return module(input_ids=batch[0], labels=batch[0]).loss


def tokens(size, least=3):
    return torch.randint(least, VOCABULARY, size)


def classified(module, batch):
    return F.cross_entropy(module(batch[0]), batch[1])


def mlp():
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(12)]
    return Model(nn.Sequential(*layers, nn.Linear(256, 10)), (torch.randn(512, 256), torch.randint(0, 10, (512,))), classified)


def gpt2():
    config = hf.GPT2Config(
        n_layer=8, n_embd=128, n_head=4, vocab_size=VOCABULARY, n_positions=128, use_cache=False, attn_pdrop=0.0
    )
    return Model(hf.GPT2LMHeadModel(config), (tokens((4, 128), 0),), causal)


DECODER = dict(
    vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
)  # fmt: skip


def llama():
    return Model(hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), (tokens((4, 128)),), causal)


def mixtral():
    config = hf.MixtralConfig(
        **{**DECODER, "num_hidden_layers": 4}, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True,
        experts_implementation="eager",
    )  # fmt: skip
    return Model(hf.MixtralForCausalLM(config), (tokens((4, 128)),), causal)


def seq2seq(module, batch):
    return module(input_ids=batch[0], labels=batch[1]).loss


def t5():
    config = hf.T5Config(
        decoder_start_token_id=0, pad_token_id=0, num_layers=4, num_decoder_layers=4, d_model=128, d_ff=512, d_kv=32,
        num_heads=4, vocab_size=VOCABULARY, dropout_rate=0.1, use_cache=False,
    )  # fmt: skip
    return Model(hf.T5ForConditionalGeneration(config), (tokens((6, 160)), tokens((6, 160))), seq2seq)


def bart():
    config = hf.BartConfig(
        encoder_layers=4, decoder_layers=4, d_model=128, encoder_ffn_dim=512, decoder_ffn_dim=512,
        encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=VOCABULARY, max_position_embeddings=160,
        use_cache=False,
    )  # fmt: skip
    return Model(hf.BartForConditionalGeneration(config), (tokens((6, 160)), tokens((6, 160))), seq2seq)


def resnet():
    import torchvision

    images = torch.randn(4, 3, 96, 96), torch.randint(0, 10, (4,))
    return Model(torchvision.models.resnet18(num_classes=10), images, classified)


class UNet(nn.Module):
    """Four levels. A skip connection keeps a level's tensor alive from the way down to the way up."""

    def __init__(self, width=16, levels=4):
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(self.block(into, out) for into, out in zip([3, *widths[:-1]], widths, strict=True))
        self.middle = self.block(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * out, out, 2, stride=2) for out in reversed(widths))
        self.merge = nn.ModuleList(self.block(2 * out, out) for out in reversed(widths))
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def block(into, out):
        layers = []
        for width in (into, out):
            layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x):
        skips = []
        for block in self.down:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def unet():
    return Model(UNet(), (torch.randn(2, 3, 96, 96), torch.randint(0, 4, (2, 96, 96))), classified)


def mamba():
    config = hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=3, state_size=8, use_cache=False, use_mambapy=False
    )
    return Model(hf.MambaForCausalLM(config), (tokens((2, 24)),), causal)


class Recurrent(nn.Module):
    """An LSTM, cell by cell."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(64, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        state = None
        for row in x:
            state = self.cell(row, state)
        return self.head(state[0])


def lstm():
    return Model(Recurrent(), (torch.randn(48, 64, 64), torch.randint(0, 10, (64,))), classified)


MODELS = {make.__name__: make for make in (mlp, gpt2, llama, t5, bart, mixtral, resnet, unet, mamba, lstm)}


def make_test_model(name):
    from bench_models import CASES

    return Model(CASES[name].model(), CASES[name].batch(), CASES[name].loss)


def make(name):
    torch.manual_seed(0)
    model = MODELS[name]() if name in MODELS else make_test_model(name)
    model.module.train()
    return model
