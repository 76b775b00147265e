# SPDX-License-Identifier: BSD-3-Clause

"""Threads, libraries of ops and collectives."""

import pytest
import ranks
import torch
from programs import leaf
from same import assert_same, plain

import remat_meta as remat

from .common import ANOTHER, assert_raises, call, in_a_thread, outcome, region


@pytest.mark.skipif(not ranks.HAS_GLOO, reason="needs gloo")
@pytest.mark.parametrize(
    "check",
    [
        "s20_under_offload_the_value_from_before_a_collective_is_used",
        "d6_collectives_that_differentiate_have_no_strict_tape_in_a_nested_region",
    ],
)
def test_s20_d6_on_two_ranks(check):
    ranks.assert_right(("limit_checks",), 2, check)


def test_d1_a_thread_of_the_function_gets_a_placeholder_in_the_replay():
    def program(wrap):
        x, errors = leaf(4), []

        def fn(x):
            h = call(lambda x: x * 2)(x)

            def work():
                try:
                    h.sum()
                except RuntimeError as error:
                    errors.append(str(error))

            in_a_thread(work)
            return x.sin().exp()

        wrap(fn)(x).sum().backward()
        return errors

    assert outcome(program, plain) == []
    (error,) = outcome(program, region())
    assert error.startswith("[placeholder] result of call 'call' (SAVE)")


def test_d3_a_tensor_that_another_thread_makes_inside_the_region_raises():
    def program(wrap):
        x = leaf(4)

        def fn(x):
            made = []
            in_a_thread(lambda: made.append(torch.ones(4)))
            return (x * made[0]).sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_raises(program, region(), ANOTHER, remat.ReplayMismatch)
    assert_same(program, region("tape"))
