# SPDX-License-Identifier: BSD-3-Clause

"""The scripts of examples/integrations, and the page about them: trained weights are bitwise those of a plain run."""

import functools
import importlib.util
from pathlib import Path

import integrations
import pytest
import torch
from harness import first_difference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "integrations.md"
LAYERS = {"torchvision_resnet": 8}  # regions that wait for a backward; all other scripts have 4
SCRIPTS = sorted(path.stem for path in integrations.SCRIPTS.glob("*.py"))

pytestmark = pytest.mark.torch_warns


@functools.cache
def plain_run(script):
    return integrations.run(script, "plain")


@pytest.mark.parametrize("mode", ["remat", "launched"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_trains_the_same_weights(script, mode):
    if not all(map(importlib.util.find_spec, integrations.NEEDS.get(script, ()))):
        pytest.skip(f"needs {', '.join(integrations.NEEDS[script])}: docs/how-to/integrations.md")
    plain, got = plain_run(script), integrations.run(script, mode)
    assert first_difference(plain.state, got.state) is None
    assert plain.regions == [0] * 8  # four steps of two batches
    assert got.regions == [LAYERS.get(script, 4)] * 8
    assert got.peaks[-1] < 0.85 * plain.peaks[-1]


@pytest.mark.parametrize(("begun", "resumed"), [("plain", "remat"), ("remat", "plain"), ("torch", "remat")])
def test_a_run_is_resumed_in_another_way(begun, resumed, tmp_path):
    before, after = {}, {}
    with integrations.patches_taken_off():
        exec(integrations.text_for("hf_trainer", begun).split("torch.manual_seed(0)")[0], before)
        torch.manual_seed(0)
        before["train"](before["make_model"](), tmp_path, steps=2, resume=False)
    with integrations.patches_taken_off():
        exec(integrations.text_for("hf_trainer", resumed).split("torch.manual_seed(0)")[0], after)
        model = after["make_model"]()
        after["train"](model, tmp_path, steps=4, resume=True)
    assert first_difference(plain_run("hf_trainer").state, integrations.state_of(model)) is None


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_has_the_lines_of_each_script(script):
    page = PAGE.read_text()
    lines = (integrations.SCRIPTS / f"{script}.py").read_text().splitlines()
    added = [line.split("  # ")[0].strip() for line in lines if line.endswith(("  # remat", "  # checkpoint"))]
    assert f"examples/integrations/{script}.py" in page
    assert added
    assert [line for line in added if line.rstrip(",") not in page] == []
