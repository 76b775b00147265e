# SPDX-License-Identifier: BSD-3-Clause

"""Regions inside and around modules of FSDP1, FSDP2 and DDP, on 2 and 4 ranks of gloo."""

import pytest
import ranks
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import sharded_checks


@pytest.mark.parametrize("check", sharded_checks.ON_TWO_RANKS)
def test_two_ranks(check):
    ranks.assert_right("sharded_checks", 2, check, *sharded_checks.ON_TWO_RANKS)


@pytest.mark.parametrize("check", sharded_checks.ON_FOUR_RANKS)
def test_four_ranks(check):
    ranks.assert_right("sharded_checks", 4, check, *sharded_checks.ON_FOUR_RANKS)
