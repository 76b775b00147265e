# SPDX-License-Identifier: BSD-3-Clause

"""Settings and collectives that differ by rank, on 2 and 4 ranks of gloo."""

import ranks

test_two_ranks, test_four_ranks = ranks.tests_of("agreement_checks")


def test_other_modes(monkeypatch):
    monkeypatch.setenv("REMAT_AGREEMENT", "0")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    ranks.assert_right(("agreement_checks",), 2, "other_modes", "other_modes")
