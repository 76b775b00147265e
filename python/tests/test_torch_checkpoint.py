# SPDX-License-Identifier: BSD-3-Clause

"""The drop-in for torch.utils.checkpoint, called and patched."""

import functools
import gc
from dataclasses import dataclass

import pytest
import torch
import torch.utils.checkpoint as stock
from same import assert_equal, assert_same
from torch import nn
from torch.utils.checkpoint import checkpoint as imported_before
from torch.utils.checkpoint import checkpoint_sequential as sequential_before

import remat_meta as remat
from remat_meta import _C

held_in_partial = functools.partial(imported_before, use_reentrant=False)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def dropped_in(fn):
    return lambda *args: remat.torch_checkpoint(fn, *args, use_reentrant=False)


def runs_on_remat(call):
    """True if call(function, x) opens a region of remat."""
    before = _C.live_region_count()
    y = call(lambda x: x.sin().exp(), leaf(2))
    opened = _C.live_region_count() - before
    y.sum().backward()
    return opened == 1


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_gradients_buffers_and_random_stream_are_bitwise_plain(reentrant):
    def program(wrap):
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(inplace=True))
        x = leaf(4, 6)
        wrap(model)(x).pow(2).sum().backward()
        return [p.grad for p in model.parameters()] + list(model.buffers()) + [x.grad]

    assert_same(program, lambda fn: functools.partial(remat.torch_checkpoint, fn, use_reentrant=reentrant))


def test_any_leaf_of_the_output_passes():
    class Cache:
        pass

    @dataclass
    class Output:
        logits: torch.Tensor
        cache: object

    cache = Cache()

    def fn(x, scale, *, flag):
        assert flag == "mine"
        y = (x * scale).sin()
        return y, None, cache, {"n": 3, "output": Output(y.exp(), cache)}

    def program(wrap):
        x = leaf(3)
        y, nothing, same, rest = wrap(functools.partial(fn, flag="mine"))(x, 2.0)
        assert nothing is None and same is cache and rest["n"] == 3 and rest["output"].cache is cache
        (y + rest["output"].logits).sum().backward()
        return x.grad

    assert_same(program, dropped_in)


def test_keywords_go_to_the_function():
    x = leaf(2)
    remat.torch_checkpoint(lambda x, *, region_name: x.sin() * region_name, x, region_name=2.0).sum().backward()
    assert_equal(x.cos() * 2.0, x.grad)


def test_preserve_rng_state_can_be_turned_off():
    draws = []

    def fn(x):
        draws.append(torch.rand(1).item())
        return x.sin().exp()

    for preserve in (True, False):
        draws.clear()
        remat.torch_checkpoint(fn, leaf(2), preserve_rng_state=preserve).sum().backward()
        assert (draws[0] == draws[1]) == preserve


def test_no_context_fn_is_torchs_own_default():
    remat.torch_checkpoint(torch.sin, leaf(2), context_fn=stock.noop_context_fn)


def test_determinism_check_takes_the_values_of_torch():
    factor = [1.0]
    fn = lambda x: (x * factor[0]).sin()  # noqa: E731
    y = remat.torch_checkpoint(fn, leaf(2), determinism_check="none")
    z = remat.torch_checkpoint(fn, leaf(2), determinism_check="default")
    factor[0] = 2.0
    y.sum().backward()
    with pytest.raises(remat.ReplayMismatch):
        z.sum().backward()
    with pytest.raises(ValueError, match="determinism_check: expected"):
        remat.torch_checkpoint(fn, leaf(2), determinism_check="bitwise")


class Switch:
    on = True


def differs(x, switch):
    y = x.sin()
    if switch.on:
        y = y.exp()
    return y.cos()


def test_debug_lists_the_ops_of_both_runs_with_their_lines():
    switch = Switch()
    y = remat.torch_checkpoint(differs, leaf(2), switch, debug=True)
    with remat.set_checkpoint_debug_enabled(True):
        z = remat.torch_checkpoint(differs, leaf(2), switch)
    switch.on = False
    for out in (y, z):
        with pytest.raises(remat.ReplayMismatch) as raised:
            out.sum().backward()
        text = str(raised.value)
        message = "op 1: expected aten::exp(float32 [2] on cpu requires grad of op 0) as in the forward, got aten::cos("
        assert message in text.replace("cuda:0", "cpu")
        heading = "Ops of the replay, the last one is where it stopped:\n"
        forward, replay = text.split("Ops of the forward:\n")[1].split(heading)
        lines = [[line.split("(")[0].split()[-1] for line in part.splitlines()] for part in (forward, replay)]
        assert lines == [["aten::sin", "aten::exp", "aten::cos"], ["aten::sin", "aten::cos"]]
        at = differs.__code__.co_firstlineno
        assert f"requires grad from outside #0)  test_torch_checkpoint.py:{at + 1} in differs < " in forward.splitlines()[0]
        assert f"test_torch_checkpoint.py:{at + 3} in differs < " in forward.splitlines()[1]
        assert f"test_torch_checkpoint.py:{at + 4} in differs" in replay.splitlines()[1]  # on a device LibTorch is the caller


def test_without_debug_there_are_no_lists():
    switch = Switch()
    with remat.set_checkpoint_debug_enabled(False):
        y = remat.torch_checkpoint(differs, leaf(2), switch, debug=True)
    switch.on = False
    with pytest.raises(remat.ReplayMismatch) as raised:
        y.sum().backward()
    assert "Ops of" not in str(raised.value)


def test_debug_changes_no_bit_and_knows_named_calls():
    def program(wrap):
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        x = leaf(4, 6)
        wrap(model)(x).pow(2).sum().backward()
        return [p.grad for p in model.parameters()] + list(model.buffers()) + [x.grad]

    assert_same(program, lambda fn: functools.partial(remat.torch_checkpoint, fn, debug=True))
    name = ["first"]
    fn = lambda x: remat.region(torch.exp, name[0], recompute=True)(x.sin()).cos()  # noqa: E731
    y = remat.torch_checkpoint(fn, leaf(2), debug=True)
    name[0] = "second"
    with pytest.raises(remat.ReplayMismatch, match="1 call 'first' (.|\n)*1 call 'second' "):
        y.sum().backward()


def ends_reached(**options):
    reached = []

    def fn(x):
        y = x.sin()
        reached.append("saved")
        y = y + 1
        reached.append("end")
        return y

    remat.torch_checkpoint(fn, leaf(2), **options).sum().backward()
    return reached.count("end")


def test_early_stop_and_its_context_managers():
    assert ends_reached() == 1
    assert ends_reached(early_stop=False) == 2
    for set_early_stop in (remat.set_checkpoint_early_stop, stock.set_checkpoint_early_stop):
        with set_early_stop(False):
            assert ends_reached(early_stop=True) == 2
        with set_early_stop(True):
            assert ends_reached(early_stop=False) == 1
    with remat.set_checkpoint_debug_enabled(True):
        assert ends_reached(debug=True) == 1


CALLS = {
    "module": lambda fn, x: stock.checkpoint(fn, x, use_reentrant=False),
    "imported before": lambda fn, x: imported_before(fn, x, use_reentrant=True),
    "partial": held_in_partial,
    "without use_reentrant": lambda fn, x: imported_before(fn, x),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_patch_reaches_every_name_and_is_undone(call):
    with remat.patch_torch_checkpoint():
        assert runs_on_remat(call)
    with pytest.warns(UserWarning) if call is CALLS["without use_reentrant"] else torch.enable_grad():
        assert not runs_on_remat(call)


@pytest.mark.parametrize("used_before", [False, True])
def test_the_patch_is_undone_exactly(used_before):
    below = stock.checkpoint.__wrapped__
    vars(below).pop("__dynamo_disable", None)
    if used_before:
        stock.checkpoint(torch.sin, leaf(2), use_reentrant=False)
    function, attributes = stock.checkpoint, dict(vars(below))
    patch = remat.patch_torch_checkpoint()
    with remat.patch_torch_checkpoint():
        assert runs_on_remat(imported_before_call)
        with pytest.raises(RuntimeError, match="last patch to be undone first"):
            patch.undo()
    assert runs_on_remat(imported_before_call)
    patch.undo()
    patch.undo()
    assert stock.checkpoint is function and vars(below) == attributes
    assert not runs_on_remat(imported_before_call)


def imported_before_call(fn, x):
    return imported_before(fn, x, use_reentrant=False)


def test_the_patch_ends_with_an_exception():
    with pytest.raises(KeyError), remat.patch_torch_checkpoint():
        raise KeyError
    assert not runs_on_remat(imported_before_call)


def test_a_foreign_patch_is_refused(monkeypatch):
    monkeypatch.setattr(stock, "checkpoint", lambda *args: None)
    with pytest.raises(NotImplementedError, match=r"expected the function of torch 2\.\d+, got <function"):
        remat.patch_torch_checkpoint()


def test_the_patch_reaches_checkpoint_wrapper():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    wrapped = checkpoint_wrapper(nn.Linear(2, 2))
    with remat.patch_torch_checkpoint():
        assert runs_on_remat(lambda fn, x: fn(wrapped(x)))


def test_without_a_function_it_decorates_functions_and_methods():
    class Scaled:
        scale = 3.0

        @remat.torch_checkpoint(use_reentrant=False, respect_saved_tensors_hooks=True)
        def of(self, x, *, debug):  # `debug` is a keyword of the function itself
            return (x * self.scale * debug).sin()

    x = leaf(2)
    before = _C.live_region_count()
    y = Scaled().of(x, debug=2.0)
    assert _C.live_region_count() == before + 1
    y.sum().backward()
    assert_equal(x.grad, (x.detach() * 6.0).cos() * 2.0 * 3.0)
    with remat.patch_torch_checkpoint():
        assert runs_on_remat(lambda function, x: stock.checkpoint(use_reentrant=False)(function)(x))
    with pytest.raises(TypeError, match="flag: expected options only, where no function is given"):
        remat.torch_checkpoint(use_reentrant=False, flag=True)


@pytest.mark.parametrize("respect", [None, True, False])
def test_hooks_around_get_what_the_policy_keeps(respect):
    packed = []

    def contexts():
        return stock.create_selective_checkpoint_contexts([torch.ops.aten.exp.default])

    def pack(tensor):
        packed.append(tensor.detach().clone())
        return tensor

    x = leaf(2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = remat.torch_checkpoint(
            lambda x: x.exp().sin(), x, use_reentrant=False, context_fn=contexts, respect_saved_tensors_hooks=respect
        )
    assert any(torch.equal(tensor, x.detach().exp()) for tensor in packed)
    y.sum().backward()


@pytest.mark.parametrize("patched", [True, False])
def test_checkpoint_sequential_in_torchs_form(patched):
    def program(wrap):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(5)])
        x = leaf(2, 4)
        wrap(model)(x).sum().backward()
        return [p.grad for p in model.parameters()] + [x.grad]

    call = sequential_before if patched else remat.checkpoint_sequential

    def wrap(model):
        return lambda x: call(model, 3, x, use_reentrant=False)

    if not patched:
        assert_same(program, wrap)
        return
    with remat.patch_torch_checkpoint():
        before = _C.live_region_count()
        y = wrap(nn.Sequential(*[nn.Tanh() for _ in range(4)]))(leaf(2))
        assert _C.live_region_count() == before + 2
        del y
        assert_same(program, wrap)


def test_a_save_call_inside_torchs_checkpoint_inside_a_region_is_plain():
    def program(wrap):
        x = leaf(3)
        save = remat.native_op(torch.exp, "exp", remat.CheckpointPolicy.SAVE)
        wrap(lambda x: stock.checkpoint(lambda x: save(x.sin()).cos(), x, use_reentrant=False))(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint())


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("engine", ["function", "tape", "auto"])
@pytest.mark.parametrize("policy", ["SAVE", "OFFLOAD"])
def test_torchs_checkpoint_stops_in_the_middle_of_a_save_call(policy, engine, nested):
    policy = getattr(remat.CheckpointPolicy, policy)
    options = {"replay": engine, "policy": remat.PolicyTable().op("*", policy)}
    options["offload_store"] = remat.host_memory_store()

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        block = wrap(lambda h: (h.sin() @ w).exp().tanh() @ w)
        outer = wrap(lambda h: block(block(h.cos()))) if nested else lambda h: block(block(h.cos()))
        for _ in range(3):
            stock.checkpoint(outer, x, use_reentrant=False).sum().backward()
        return x.grad, w.grad

    assert_same(program, remat.checkpoint(**options))


@pytest.mark.parametrize("engine", ["function", "tape", "auto"])
@pytest.mark.parametrize("outer", ["function", "tape", "auto", None])
def test_a_tape_inside_torchs_checkpoint_gives_that_nothing_but_arguments(outer, engine):
    """Torch's checkpoint counts the tensors saved in it; which others a tape holds depends on which tensors share memory."""

    def program(wrap):
        def fn(t):
            h = t.exp()

            def inner(_):
                return h * t

            return stock.checkpoint(wrap(inner), h, use_reentrant=False)

        x = leaf(4)
        y = wrap(fn)(x * 1)
        y.sum().backward()
        return y, x.grad

    def wrap(fn):
        replay = engine if fn.__name__ == "inner" else outer
        return remat.checkpoint(replay=replay)(fn) if replay else fn

    assert_same(program, wrap)


@pytest.mark.parametrize("early_stop", (True, False))
def test_an_error_in_a_replay_leaves_the_hooks_around_the_backward(early_stop):
    calls, packed = [], []

    def fails_when_it_runs_again(h):
        calls.append(None)
        if len(calls) > 1:
            raise ValueError("again")
        return h.sin().exp()

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor

    x = torch.randn(4, requires_grad=True)
    y = remat.checkpoint(early_stop=early_stop)(
        lambda h: stock.checkpoint(fails_when_it_runs_again, h.cos(), use_reentrant=False) * 2
    )(x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with pytest.raises(ValueError, match="again"):
            y.sum().backward()
        gc.collect()
        del packed[:]
        (x * x).sum()
    assert len(packed) == 2
