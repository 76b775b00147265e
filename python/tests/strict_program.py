# SPDX-License-Identifier: BSD-3-Clause

"""A program that uses the public calls, for `mypy --strict` and pyright in strict mode; nothing runs it.

A `type: ignore` is a mistake that must be found: one that is not used is an error, too.
"""

from typing import Any

import torch
from torch import nn
from typing_extensions import assert_type

import remat_meta as remat
from remat_meta import CheckpointPolicy as Policy


@remat.checkpoint(region_name="scaled", policy="save_matmuls")
def scaled(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return (x * scale).sin()


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @remat.checkpoint(replay="tape")
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.halves(x)[0]

    @remat.checkpoint()
    def halves(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def pair(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x, 1


def functions(x: torch.Tensor, block: Block) -> torch.Tensor:
    assert_type(scaled(x), torch.Tensor)
    assert_type(scaled(x, scale=3.0), torch.Tensor)
    assert_type(remat.checkpoint(region_name="pair")(pair)(x), tuple[torch.Tensor, int])
    assert_type(remat.native_op(pair, "pair", Policy.SAVE)(x), tuple[torch.Tensor, int])
    assert_type(remat.region(pair, "pair", recompute=False)(x), tuple[torch.Tensor, int])
    assert_type(block.halves(x), tuple[torch.Tensor, torch.Tensor])
    assert_type(remat.torch_checkpoint(pair, x, use_reentrant=False), tuple[torch.Tensor, int])
    assert_type(remat.checkpoint_sequential(2)(nn.Sequential(block))(x), Any)
    assert_type(remat.tiled(scaled, 0, 8)(x), torch.Tensor)
    scaled("x")  # type: ignore[arg-type]
    block.forward(x, 1)  # type: ignore[call-arg]
    remat.checkpoint(replay="tapes")  # type: ignore[arg-type]
    remat.recompute_needs_tensor(x)
    return scaled(x) if remat.is_recomputing() else block.halves(x)[1]


def models(x: torch.Tensor) -> None:
    model = remat.auto_checkpoint(Block(8), memory_budget="60%")
    assert_type(model, Block)
    step = remat.auto_checkpoint(pair, of_peak=0.6)
    assert_type(step(x), tuple[torch.Tensor, int])
    print(remat.memory_plan(model).predicted_peak_bytes + 1, remat.memory_plan(step).explain())
    with remat.patch_torch_checkpoint():
        pass
    patch = remat.patch_torch_checkpoint()
    patch.undo()


class Count(remat.RecomputeStateHook):
    calls = 0

    def snapshot(self) -> int:
        return self.calls

    def restore(self, state: int) -> None:
        self.calls = state


class Ticket:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def get(self) -> torch.Tensor:
        return self.tensor


class Store(remat.OffloadStore):
    def put(self, tensor: torch.Tensor) -> Ticket:
        return Ticket(tensor)


def keep_matmuls(ctx: remat.PolicyContext, op: Any, *args: Any, **kwargs: Any) -> Policy:
    return Policy.SAVE if ctx.tensor_name and op == torch.ops.aten.mm.default else Policy.RECOMPUTE


def options(x: torch.Tensor) -> None:
    table = remat.PolicyTable().op("aten::addmm", Policy.RECOMPUTE).add(remat.save_matmuls())
    for policy in (table, keep_matmuls, ["aten::mm"], "save_matmuls"):
        remat.checkpoint(policy=policy)(pair)(x)
    remat.checkpoint(recompute_state_hooks=[Count()], offload_store=Store(), generators=[torch.Generator()])(pair)(x)
    remat.checkpoint(replay="tape", cuts=remat.Cuts([1, 2], groups=[(0, 1)]))(pair)(x)
    with remat.saved_tensors_hooks(lambda t: t.clone(), lambda t: t), remat.name_scope("decoder"):
        scaled(x)


def reports(loss: torch.Tensor) -> str:
    report = remat.memory_report()
    rows = [row.bytes for region in report for row in region]
    assert_type(rows, list[int])
    with remat.collect_trace() as trace, remat.MemoryMeter() as meter, remat.record("step.rec") as recorder:
        remat.trace_scope(pair, "pair")(loss)
        recorder.mark("step")
    profile = remat.profile(pair)(loss)
    plan = profile.plan("8GB")
    remat.checkpoint(plan=plan)(pair)(loss)
    remat.print_saved_tensors_report(loss)
    return f"{trace.format()} {meter.peak_bytes()} {plan.table()} {remat.format_current_memory_report()}"


def main() -> None:
    remat.register_device()
    x = torch.randn(4, 8, requires_grad=True)
    torch.autograd.backward(functions(x, Block(8)).sum())  # Tensor.backward has no types
    models(x)
    options(x)
    print(reports(x.sum()))
