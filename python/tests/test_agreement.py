# SPDX-License-Identifier: BSD-3-Clause

"""Settings and collectives that differ by rank, on 2 and 4 ranks of gloo."""

import pytest
import ranks
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import agreement_checks as checks


@pytest.mark.parametrize("check", checks.ON_TWO_RANKS)
def test_two_ranks(check):
    ranks.assert_right(("agreement_checks",), 2, check, *checks.ON_TWO_RANKS)


@pytest.mark.parametrize("check", checks.ON_FOUR_RANKS)
def test_four_ranks(check):
    ranks.assert_right(("agreement_checks",), 4, check, *checks.ON_FOUR_RANKS)


def test_other_modes(monkeypatch):
    monkeypatch.setenv("REMAT_AGREEMENT", "0")
    monkeypatch.setenv("REMAT_DEBUG_COLLECTIVES", "1")
    ranks.assert_right(("agreement_checks",), 2, "other_modes", "other_modes")
