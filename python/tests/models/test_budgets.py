# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint() on models of libraries whose steps differ: lengths, experts, and a script with timm."""

import copy
import warnings

import pytest
import timm
import torch
import transformers as hf
from harness import first_difference
from hf_models import CASES, DECODER, EXPERTS

import remat_meta as remat

pytestmark = pytest.mark.torch_warns


def state_of(model, loss):
    gradients = {f"grad of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "generator": torch.get_rng_state(), **model.state_dict(), **gradients}


def train_beside(model, batches, budget, loss_of):
    """Trains the model within the budget and a copy plainly, with the same bits after each step. Returns the model's peaks."""
    plain = copy.deepcopy(model)
    remat.auto_checkpoint(model, budget)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (plain, model)]
    peaks = []
    for i, batch in enumerate(batches):
        states = []
        for m, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            torch.manual_seed(i)
            with remat.MemoryMeter() as meter:
                loss = loss_of(m, batch)
                loss.backward()
                peak = meter.peak_bytes()
            optimizer.step()
            states.append(state_of(m, loss))
        assert first_difference(*states) is None, i
        peaks.append(peak)
    return peaks


def causal(model, ids):
    return model(input_ids=ids, labels=ids).loss


def test_eight_lengths_for_three_epochs():
    torch.manual_seed(0)
    lengths = [24, 10, 30, 16, 12, 28, 20, 8]
    batches = [torch.randint(4, 61, (4, length)) for _ in range(3) for length in lengths]
    model = CASES["gpt2"].model().train()
    peaks = train_beside(model, batches, "80%", causal)
    plan = remat.memory_plan(model)
    assert plan.feasible and max(peaks[-8:]) <= plan.budget_bytes


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_a_batch_of_one_token_leaves_experts_without_work(experts):
    torch.manual_seed(0)
    config = hf.MixtralConfig(
        **DECODER, num_local_experts=4, num_experts_per_tok=2, experts_implementation=experts, **EXPERTS
    )
    model = hf.MixtralForCausalLM(config).train()
    batches = [torch.randint(4, 61, (4, 24)) for _ in range(9)]
    batches[5] = torch.full((4, 24), 7)
    batches[7] = batches[7][:2]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peaks = train_beside(model, batches, "90%", causal)
    plan = remat.memory_plan(model)
    assert plan.feasible and all(peaks[i] <= plan.budget_bytes for i in (6, 8))


def test_a_script_with_timm():
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).train()
    batches = [(torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))) for _ in range(5)]

    def loss_of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    peaks = train_beside(model, batches, "99%", loss_of)  # gradients of weights are nine tenths
    assert max(peaks[3:]) <= remat.memory_plan(model).budget_bytes
