# SPDX-License-Identifier: BSD-3-Clause

"""Lightning, the Trainer of Transformers and PEFT: weights after training are bitwise those of a plain run."""

import peft
import pytest
import pytorch_lightning as lightning
import torch
import torch.utils.checkpoint
import transformers as hf
from harness import SAVE, first_difference
from hf_models import CASES
from torch import nn

import remat_meta as remat
from remat_meta._C import live_region_count

pytestmark = pytest.mark.torch_warns


class Rows(torch.utils.data.Dataset):
    """Sequences of tokens, the same in every run."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(3)
        self.ids = torch.randint(4, 61, (count, 10), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


class LitModel(lightning.LightningModule):
    """Blocks with dropout and batch norm, each called through `call`."""

    def __init__(self, call):
        super().__init__()
        self.call = call
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2)) for _ in range(3)
        )
        self.regions = []

    def training_step(self, batch, _):
        (x,) = batch
        before = live_region_count()
        for block in self.blocks:
            x = self.call(block, x)
        self.regions.append(live_region_count() - before)
        return x.pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def called_plain(block, x):
    return block(x)


def called_as_region(block, x):
    return remat.checkpoint(region_name="block")(block)(x)


def called_with_saved_linear(block, x):
    def steps(x):
        return block[1:](remat.native_op(block[0], "linear", SAVE)(x))

    return remat.checkpoint(region_name="block")(steps)(x)


def called_by_drop_in(block, x):
    with remat.patch_torch_checkpoint():
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()} | {"generator": torch.get_rng_state()}


def fit_lightning(call, folder, precision, accumulated):
    torch.manual_seed(5)
    model = LitModel(call)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 8))
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=2, precision=precision, accumulate_grad_batches=accumulated,
        default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True))
    assert trainer.global_step == 2
    assert model.regions == [0 if call is called_plain else 3] * 2 * accumulated
    return state_of(model)


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("call", [called_as_region, called_with_saved_linear, called_by_drop_in])
def test_lightning_trains_the_same_weights(call, precision, accumulated, tmp_path):
    expected = fit_lightning(called_plain, tmp_path, precision, accumulated)
    assert first_difference(expected, fit_lightning(call, tmp_path, precision, accumulated)) is None


def fit_hf(folder, name, checkpointed, bf16=False, lora=False):
    torch.manual_seed(5)
    model = CASES[name].model()
    if lora:
        model = with_adapters(model)
    arguments = hf.TrainingArguments(
        output_dir=folder, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=0.01, activation_checkpointing=checkpointed, bf16=bf16, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no", seed=5,
    )  # fmt: skip
    trainer = hf.Trainer(model=model, args=arguments, train_dataset=Rows(24))
    before = model.state_dict()["base_model.model.lm_head.weight" if lora else "lm_head.weight"].clone()
    trainer.train()
    after = model.state_dict()["base_model.model.lm_head.weight" if lora else "lm_head.weight"]
    assert torch.equal(before, after) == lora
    return state_of(model)


def with_adapters(model):
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, config)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_trainer_of_transformers_trains_the_same_weights(name, bf16, tmp_path, monkeypatch):
    expected = fit_hf(tmp_path, name, checkpointed=False, bf16=bf16)
    opened = []
    with remat.patch_torch_checkpoint():
        forward = hf.Trainer.compute_loss

        def counted(self, *args, **keywords):
            before = live_region_count()
            loss = forward(self, *args, **keywords)
            opened.append(live_region_count() - before)
            return loss

        monkeypatch.setattr(hf.Trainer, "compute_loss", counted)
        got = fit_hf(tmp_path, name, checkpointed=True, bf16=bf16)
    assert opened == [3] * 6  # 3 layers; 3 steps of 2 microbatches
    assert first_difference(expected, got) is None


def test_the_trainer_trains_adapters_on_a_frozen_base(tmp_path):
    expected = fit_hf(tmp_path, "llama", checkpointed=False, lora=True)
    with remat.patch_torch_checkpoint():
        got = fit_hf(tmp_path, "llama", checkpointed=True, lora=True)
    assert first_difference(expected, got) is None


def by_switch(model):
    model.base_model.model.activation_checkpointing_enable()


def by_hand(model):
    for layer in model.base_model.model.model.layers:
        layer.self_attn.forward = remat.native_op(layer.self_attn.forward, "attention", SAVE)
        layer.forward = remat.checkpoint(region_name="layer")(layer.forward)


def adapter_gradients(change):
    torch.manual_seed(5)
    model = with_adapters(CASES["llama"].model()).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, which would leave lora_A without gradients
            torch.nn.init.normal_(parameter, std=0.1)
    change(model)
    model(**CASES["llama"].batch()).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("change", [by_switch, by_hand])
def test_adapters_on_a_frozen_base_get_their_gradients(change):
    expected = adapter_gradients(lambda model: None)
    with remat.patch_torch_checkpoint():
        got = adapter_gradients(change)
    assert len(got) == 12  # 3 layers, q and v, A and B
    assert all(gradient.abs().sum() > 0 for gradient in got.values())
    assert first_difference(expected, got) is None


class LitWhole(lightning.LightningModule):
    """A model that is planned as a whole, by one line in __init__."""

    def __init__(self, budget):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)) for _ in range(6)]
        self.model = nn.Sequential(*layers)
        if budget is not None:
            remat.auto_checkpoint(self.model, budget)

    def training_step(self, batch, _):
        return self.model(batch[0]).pow(2).mean()

    def validation_step(self, batch, _):
        self.model(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_with_one_line_trains_the_same_weights_within_a_budget(precision, tmp_path):
    def fit(budget):
        torch.manual_seed(5)
        model = LitWhole(budget)
        rows = torch.utils.data.TensorDataset(torch.randn(22, 8))  # the last batch is smaller
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=2, precision=precision, default_root_dir=tmp_path, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
        trainer.fit(model, loader, torch.utils.data.DataLoader(rows, batch_size=5))
        return model, state_of(model)

    _, expected = fit(None)
    model, got = fit("90%")
    assert first_difference(expected, got) is None
    assert remat.memory_plan(model.model).feasible


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_the_trainer_of_transformers_with_one_line_trains_the_same_weights_within_a_budget(name, bf16, tmp_path):
    def fit(budget):
        torch.manual_seed(5)
        model = CASES[name].model()
        if budget is not None:
            remat.auto_checkpoint(model, budget)
        arguments = hf.TrainingArguments(
            output_dir=tmp_path, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=0.01, bf16=bf16, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            logging_strategy="no", seed=5,
        )  # fmt: skip
        hf.Trainer(model=model, args=arguments, train_dataset=Rows(24)).train()
        return model, state_of(model)

    _, expected = fit(None)
    model, got = fit("95%")
    assert first_difference(expected, got) is None
    assert remat.memory_plan(model).feasible
