# SPDX-License-Identifier: BSD-3-Clause

"""Other choices that memory_report() and the out-of-memory report suggest, with their bytes."""

import types

import torch

import remat_meta as remat
from remat_meta import _oom

SAVE = remat.CheckpointPolicy.SAVE
BYTES = 4 * 8 * 8


def layers(count):
    """Each layer SAVEs a sine that its cosine reads, and a product by a rule; returns the layers and the loss."""
    x = torch.randn(8, 8, requires_grad=True) * 1
    policy = remat.PolicyTable().op("aten::mm", SAVE)
    w = torch.randn(8, 8, requires_grad=True)

    def layer(h, name):
        h = remat.native_op(torch.neg, name, SAVE)(h.sin())
        return (h.cos() @ w).tanh()

    for i in range(count):
        x = remat.checkpoint(region_name=f"layer.{i}", policy=policy)(layer)(x, f"layer.{i}/neg")
    return x.sum()


def test_changes_name_rules_calls_and_readers():
    loss = layers(3)
    report = remat.memory_report()
    by_reason = {change.reason: change for change in report.changes}
    rule = next(by_reason[reason] for reason in by_reason if reason.startswith("rule op"))
    assert "aten::mm" in rule.reason or "aten.mm" in rule.reason
    assert (rule.change, rule.device, rule.regions) == ("RECOMPUTE instead of SAVE", "cpu", 3)
    call = by_reason["SAVE of call 'layer.0-2/neg'"]
    reader = by_reason["aten::cos reads the result of call 'layer.0-2/neg'"]
    assert call.bytes == reader.bytes == 3 * BYTES and call.tensors == 3
    assert report.changes[-1].bytes_so_far <= report.bytes
    loss.backward()
    assert remat.memory_report().changes == []


def test_the_report_for_no_memory_says_what_is_enough():
    loss = layers(2)
    text = remat.format_oom_saved_tensors_report()
    changes = remat.memory_report().changes_str()
    assert text.startswith("saved for backward: ")
    assert changes.startswith("to free memory of cpu, change") and text.endswith(changes.rstrip())
    text = remat.memory_report().changes_str(device="cpu", wanted=2 * BYTES)
    assert text.startswith(f"{2 * BYTES} bytes of cpu are wanted; to free memory of cpu, change")
    assert "enough\n" in text and "not enough" not in text
    assert "not enough" in remat.memory_report().changes_str("cpu", 1 << 40)
    assert loss.requires_grad


def test_the_observer_names_what_to_change_on_its_device(capsys, monkeypatch):
    asked = []

    class Report:
        def changes_str(self, device, wanted):
            asked.append((device, wanted))
            return "1,024 bytes are wanted\n"

    monkeypatch.setattr(_oom, "_C", types.SimpleNamespace(memory_report=Report))
    remat.oom_observer(1, 1024, 4096, 512)
    assert asked == [("cuda:1", 1024)]
    assert capsys.readouterr().err.endswith("\n\n1,024 bytes are wanted\n")
