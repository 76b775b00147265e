# SPDX-License-Identifier: BSD-3-Clause

"""Collectives, sends and tensor parallel modules in regions, on 2 and 4 ranks of gloo."""

import pytest
import ranks
import torch.distributed as dist

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

import collective_checks


@pytest.mark.parametrize("check", collective_checks.CHECKS)
def test_two_ranks(check):
    ranks.assert_right(("collective_checks",), 2, check)


@pytest.mark.parametrize("check", collective_checks.ON_FOUR_RANKS)
def test_four_ranks(check):
    ranks.assert_right(("collective_checks",), 4, check, *collective_checks.ON_FOUR_RANKS)
