# SPDX-License-Identifier: BSD-3-Clause

"""Regions inside and around modules of FSDP1, FSDP2 and DDP, and plans that ranks agree on, on 2 and 4 ranks of gloo."""

import pytest
import ranks
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import ddp_checks
import fsdp_checks
import plan_checks

MODULES = ("fsdp_checks", "ddp_checks", "plan_checks")
ON_TWO_RANKS = (*fsdp_checks.ON_TWO_RANKS, *ddp_checks.ON_TWO_RANKS, *plan_checks.ON_TWO_RANKS)
ON_FOUR_RANKS = (*fsdp_checks.ON_FOUR_RANKS, *ddp_checks.ON_FOUR_RANKS, *plan_checks.ON_FOUR_RANKS)


@pytest.mark.parametrize("check", ON_TWO_RANKS)
def test_two_ranks(check):
    ranks.assert_right(MODULES, 2, check, *ON_TWO_RANKS)


@pytest.mark.parametrize("check", ON_FOUR_RANKS)
def test_four_ranks(check):
    ranks.assert_right(MODULES, 4, check, *ON_FOUR_RANKS)
