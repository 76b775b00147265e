# SPDX-License-Identifier: BSD-3-Clause

"""Collectives, sends and tensor parallel modules in regions, on 2 and 4 ranks of gloo."""

import ranks

test_two_ranks, test_four_ranks = ranks.tests_of("collective_checks", "functional_checks")
