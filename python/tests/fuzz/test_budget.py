# SPDX-License-Identifier: BSD-3-Clause

"""Random programs within random budgets. Environment as for test_fuzz.py; REMAT_FUZZ_N is 5000 by default."""

import os

import pytest

from . import budget
from .budget import check_in_budget, planned_share, program_of, report_of_budgets, run_in_budgets

COUNT = int(os.environ.get("REMAT_FUZZ_N", "5000"))
FIRST = int(os.environ.get("REMAT_FUZZ_SHARD", "0")) * COUNT

pytestmark = pytest.mark.torch_warns


def test_random_programs_run_within_random_budgets():
    counts, faults = run_in_budgets(range(FIRST, FIRST + COUNT))
    print(report_of_budgets(counts, faults))
    assert not faults, report_of_budgets(counts, faults)
    assert planned_share(counts) > 0.5


def test_a_step_that_takes_more_is_found(monkeypatch):
    step = budget.Training.step

    def doubled(self, function):
        values, peak = step(self, function)
        return values, 2 * peak

    monkeypatch.setattr(budget.Training, "step", doubled)
    verdicts = [check_in_budget(program_of(seed), seed) for seed in range(20)]
    assert any("the peak of step" in verdict.text for verdict in verdicts)

