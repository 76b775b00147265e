# SPDX-License-Identifier: BSD-3-Clause

"""Settings and collectives that differ by rank, on 2 and 4 ranks of gloo."""

import ranks

test_two_ranks, test_four_ranks = ranks.tests_of("agreement_checks", "watch_checks")


def test_other_modes(monkeypatch):
    monkeypatch.setenv("REMAT_AGREEMENT", "0")
    monkeypatch.setenv("REMAT_DEBUG_COLLECTIVES", "1")
    ranks.assert_right(("watch_checks",), 2, "other_modes", "other_modes")
