# SPDX-License-Identifier: BSD-3-Clause

"""A tape in segments and groups: bitwise equal, one run of the function, and errors that name the option."""

import copy
import gc
import pickle

import pytest
import torch
from programs import leaf
from same import assert_same
from test_tape import MODELS

import remat_meta as remat
from remat_meta._C import live_region_count


def ops_of(fn, *args):
    y = remat.checkpoint(replay="tape", region_name="recorded")(fn)(*args)  # noqa: F841
    tapes = [tape for tape in remat.region_tapes() if tape.region == "region 'recorded'"]
    assert len(tapes[-1]) == len(tapes[-1].ops)
    return tapes[-1].ops


def cut(cuts, **options):
    return remat.checkpoint(replay="tape", cuts=cuts, **options)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_models_cut_anywhere_are_bitwise_plain(make, groups):
    torch.manual_seed(0)
    records = len(ops_of(make(), leaf(2, 5, 8).sin()))
    for step in {1, 2, max(1, records // 3)}:
        positions = list(range(step, records, step))
        if not positions:
            continue
        count = len(positions) + 1
        cuts = remat.Cuts(positions)
        if groups:
            halves = [(0, count // 2), (count // 2, count)]
            cuts = remat.Cuts(positions, groups=[g for g in [(0, count), *halves] if g[1] - g[0] > 1])
        runs = []

        def program(wrap, runs=runs):
            model, x = make(), leaf(2, 5, 8)

            def fn(x):
                runs.append(0)
                return model(x)

            for _ in range(2):
                y = wrap(fn)(x.sin())
                y = y[0] if isinstance(y, tuple) else y
                y.exp().sum().backward()
            return [y, x.grad, *(p.grad for p in model.parameters()), *model.buffers()]

        assert_same(program, cut(cuts))
        assert len(runs) == 4


def chain(x):
    for _ in range(4):
        x = (x.sin() @ x).tanh()
    return x


def test_cuts_keep_what_crosses_them():
    ops = ops_of(chain, leaf(8, 8))
    ends = [i + 1 for i, op in enumerate(ops[:-1]) if op == "aten::tanh"]
    y = cut(remat.Cuts(ends))(chain)(leaf(8, 8))
    assert remat.memory_report().bytes == 3 * 8 * 8 * 4
    report = remat.memory_report()
    assert any(region.tape_bytes > 0 for region in report)
    assert "made before the cut" in str(report)
    del y
    y = cut(remat.Cuts(ends, groups=[(0, 2), (2, 4)]))(chain)(leaf(8, 8))
    assert remat.memory_report().bytes == 8 * 8 * 4
    del y
    gc.collect()
    assert live_region_count() == 0


def test_segments_have_policies():
    ops = ops_of(chain, leaf(8, 8))
    ends = [i + 1 for i, op in enumerate(ops[:-1]) if op == "aten::tanh"]

    def program(wrap):
        x = leaf(8, 8)
        wrap(chain)(x).sum().backward()
        return x.grad

    asked = []

    def function(context, op, *args, **kwargs):
        asked.append(op)
        return remat.CheckpointPolicy.RECOMPUTE

    policies = [remat.PolicyTable().op("aten::sin", remat.CheckpointPolicy.SAVE), "save_matmuls", None, function]
    cuts = remat.Cuts(ends, policies=policies)
    assert_same(program, cut(cuts))
    assert torch.ops.aten.mm.default in asked
    y = cut(cuts)(chain)(leaf(8, 8))
    assert remat.memory_report().bytes == 4 * 8 * 8 * 4  # three values that cross, and one result of sin
    y.sum().backward()
    offload = [remat.PolicyTable().op("aten::sin", remat.CheckpointPolicy.OFFLOAD), None, None, None]
    cuts = remat.Cuts(ends, policies=offload)
    assert_same(program, cut(cuts, offload_store=remat.host_memory_store()))
    with pytest.raises(ValueError, match="offload_store"):
        cut(cuts)(chain)(leaf(8, 8))


def test_an_exception_in_the_function_leaves_nothing():
    def fails(x):
        x.sin().exp().tanh()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        cut(remat.Cuts([1]))(fails)(leaf(4))
    gc.collect()
    assert live_region_count() == 0


def test_the_builder_is_copied_and_pickled():
    builder = cut(remat.Cuts([1, 2], groups=[(0, 2)]))
    for other in (copy.deepcopy(builder), pickle.loads(pickle.dumps(builder))):
        x, y = leaf(4, 4), leaf(4, 4)
        other(chain)(x).sum().backward()
        y.data.copy_(x)
        chain(y).sum().backward()
        assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize(
    ("cuts", "error", "text"),
    [
        ([1, 2], TypeError, "cuts: expected Cuts, got list"),
        (remat.Cuts([2, 1]), ValueError, r"cuts.positions\[1\]: expected a record after 2"),
        (remat.Cuts(["a"]), TypeError, r"cuts.positions\[0\]: expected an int from 0 on, got 'a'"),
        (remat.Cuts([-1]), TypeError, r"cuts.positions\[0\]"),
        (remat.Cuts([1], groups=[(0, 1, 2)]), ValueError, r"cuts.groups\[0\]: expected \(first"),
        (remat.Cuts([1], groups=[(0, 3)]), ValueError, r"cuts.groups\[0\]: expected two or more of the 2"),
        (remat.Cuts([1], policies=["save_matmuls"]), ValueError, "cuts.policies"),
    ],
)
def test_what_are_no_cuts_is_refused(cuts, error, text):
    with pytest.raises(error, match=text):
        cut(cuts)


def test_cuts_need_the_tape_and_its_records():
    with pytest.raises(ValueError, match="cuts: expected replay"):
        remat.checkpoint(cuts=remat.Cuts([1]))
    with pytest.raises(ValueError, match=r"cuts.positions\[1\]: expected a record that the function has"):
        cut(remat.Cuts([1, 99]))(chain)(leaf(8, 8))


def test_memory_that_nobody_has_written_is_kept_by_the_segment_that_fills_it():
    policy = remat.PolicyTable().op("aten::empty_like", remat.CheckpointPolicy.SAVE)
    inside = remat.checkpoint(policy=policy, region_name="dropout")(
        lambda x: torch.dropout(x, 0.5, True).exp()
    )

    def program(wrap):
        x = leaf(8, 8)
        wrap(lambda x: inside(x.sin()).cos())(x).sum().backward()
        return x.grad

    for position in range(1, 7):
        garbage = [torch.full((8, 8), float(i)) for i in range(50)]
        del garbage
        name = f"cut {position} in dropout"  # a tape is compared once per name
        assert_same(program, cut(remat.Cuts([position]), region_name=name))


def test_a_list_says_what_is_kept():
    ops = ops_of(chain, leaf(8, 8))
    tanh = [i for i, op in enumerate(ops) if op == "aten::tanh"]
    cuts = remat.Cuts([i + 1 for i in tanh[:-1]], keep=[(i, 0) for i in tanh[:-1]])

    def program(wrap):
        x = leaf(8, 8)
        wrap(chain)(x).sum().backward()
        return x.grad

    assert_same(program, cut(cuts))
    y = cut(cuts)(chain)(leaf(8, 8))
    assert remat.memory_report().bytes == 3 * 8 * 8 * 4
    del y
    store = remat.host_memory_store()
    offloaded = remat.Cuts(cuts.positions, keep=[(i, 0, remat.CheckpointPolicy.OFFLOAD) for i in tanh[:-1]])
    assert_same(program, remat.checkpoint(replay="tape", cuts=offloaded, offload_store=store))
    assert_same(program, cut(remat.Cuts([], keep=[(tanh[0], 0)])))


@pytest.mark.parametrize(
    ("keep", "error", "text"),
    [
        (7, TypeError, r"cuts.keep: expected a list or tuple, got int"),
        ([(1,)], ValueError, r"cuts.keep\[0\]: expected \(record, result\) or \(record, result, policy\), got 1 items"),
        ([(1, 0), (2, -1)], TypeError, r"cuts.keep\[1\]\[1\]: expected an int from 0 on, got -1"),
        ([(1, 0, "save")], RuntimeError, r"cuts.keep\[0\]\] policy: expected a CheckpointPolicy, got str"),
        ([(2, 0), (1, 0)], ValueError, r"cuts.keep\[1\]: expected a value after result 0 of record 2"),
        ([(0, 0)], ValueError, r"cuts.keep: expected all that replays of segments read of other segments"),
        ([(2, 0), (2, 1)], ValueError, r"cuts.keep\[1\]: expected a value that the function makes"),
    ],
)
def test_what_is_no_list_is_refused(keep, error, text):
    with pytest.raises(error, match=text):
        cut(remat.Cuts([3], keep=keep))(chain)(leaf(8, 8))
