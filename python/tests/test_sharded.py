# SPDX-License-Identifier: BSD-3-Clause

"""Regions inside and around modules of FSDP1, FSDP2 and DDP, and plans that ranks agree on, on 2 and 4 ranks of gloo."""

import ranks

test_two_ranks, test_four_ranks = ranks.tests_of("fsdp_checks", "ddp_checks", "plan_checks")
