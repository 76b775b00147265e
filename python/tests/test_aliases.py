# SPDX-License-Identifier: BSD-3-Clause

"""Outside memory that is written without a new version, and saved tensors in regions that do not compare."""

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat

WRITTEN = r"modified by an inplace operation.*was written without a new version, through data\(\)"


def alias_of(tensor, how):
    return {"data": lambda: tensor.data, "view": lambda: tensor.data[1:], "set": lambda: torch.empty(0).set_(tensor)}[how]()


@pytest.mark.parametrize("how", ["data", "view"])
@pytest.mark.parametrize("size", [4, 5000])
def test_an_alias_that_is_captured_and_changes_by_way_of_the_original_is_noticed(how, size):
    w, x = leaf(size), leaf(size)
    d = alias_of(w, how)
    y = checkpointed(lambda x: (x[-len(d) :] * d.exp()).sin())(x)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
@pytest.mark.parametrize("grad", [False, True], ids=["buffer", "not a leaf"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_write_through_data_is_noticed(captured, grad, replay):
    b, x = (leaf(4) * 1 if grad else torch.randn(4)), leaf(4)
    region = remat.checkpoint(replay=replay, region_name=f"written {captured} {grad}")
    y = region(lambda x: (x * b.exp()).sin())(x) if captured else region(lambda x, b: (x * b.exp()).sin())(x, b)
    b.data.mul_(2)
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


@pytest.mark.parametrize("value", [1, 2047, 4095])
def test_one_byte_of_a_small_buffer_is_noticed(value):
    b, x = torch.zeros(4096, dtype=torch.uint8), leaf(4)
    y = checkpointed(lambda x: (x * b.sum()).sin().exp())(x)
    b.data[value] = 1
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


def test_an_alias_and_its_original_may_both_be_captured_and_written_inside():
    def program(wrap):
        w, x = torch.ones(4), leaf(4)
        d = w.data

        def fn(x):
            y = (x * d.clone()).sin() * w.clone()
            w.add_(1)
            return y.exp() + d

        wrap(fn)(x).sum().backward()
        return x.grad, w

    assert_same(program, checkpointed)


def test_set_data_of_an_argument_leaves_the_region_its_own():
    def program(wrap):
        b, x = torch.ones(4), leaf(4)
        y = wrap(lambda x, b: (x * b.exp()).sin())(x, b)
        b.data = torch.zeros(4)
        y.sum().backward()
        return (x.grad,)

    assert_same(program, checkpointed)


OTHERS = {
    "another op": (lambda x: x.sin(), lambda x: x.cos(), "Another op has saved it"),
    "another shape": (lambda x: x.sin(), lambda x: x[:1].sin(), "expected float32 .* got float32"),
    "another order": (lambda x: x.sin().sum() + x.cos().sum(), lambda x: x.cos().sum() + x.sin().sum(), "Another op"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_without_a_determinism_check_values_are_not_given_to_other_slots(other):
    first, second, says = OTHERS[other]
    flag = [True]
    y = remat.checkpoint(determinism_check="none")(lambda x: first(x) if flag[0] else second(x))(leaf(3))
    flag[0] = False
    with pytest.raises(remat.ReplayMismatch, match=says):
        y.sum().backward()


def test_who_asks_is_recomputing_may_not_exchange_saved_tensors():
    def fn(x):
        y = x.exp()
        return y.sin() if remat.is_recomputing() else y.cos()

    with pytest.raises(remat.ReplayMismatch, match="Another op has saved it"):
        checkpointed(fn)(leaf(3)).sum().backward()


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_kept_result_that_a_region_inside_holds_is_nothing_that_autograd_has_saved(replay):
    def inner(x):
        h = remat.native_op(lambda x: x * 2, "double", remat.CheckpointPolicy.SAVE)(x)
        assert h.data is not h  # from now on remat watches the memory of h
        return h[0].exp(), h

    def outer(x):
        y, h = remat.checkpoint(region_name="inner")(inner)(x.sin())
        h.mul_(0.9)  # has h's own version, so autograd notices
        return y

    y = remat.checkpoint(region_name="outer", replay=replay)(outer)(leaf(4, 4))
    words = r"region 'inner', call 'double' .SAVE..*expected its result as it left it, got it modified in-place"
    with pytest.raises(RuntimeError, match=words):
        y.sum().backward()


def write_data(y):
    y.data.mul_(2)


def write_data_of_a_part(y):
    y[0].data.mul_(2)


def write_data_that_is_held(y):
    data, y = y.data, None
    data.mul_(2)
    return data


def multiply_data_as_python_does(y):
    y.data *= 2


def exchange_data(y):
    y.data = torch.zeros_like(y)


WRITES = [write_data, write_data_of_a_part, write_data_that_is_held, multiply_data_as_python_does, exchange_data]
CHANGED = r"region 'results'.*(got a region's result that was written by way of another tensor|got other memory)"
SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
@pytest.mark.parametrize("policy", [None, SAVE, OFFLOAD], ids=["none", "save", "offload"])
@pytest.mark.parametrize("replay", ["function", "tape", "auto"])
@pytest.mark.parametrize("write", WRITES)
def test_a_result_that_is_written_by_way_of_data_after_the_region_raises_in_backward(write, replay, policy, nested):
    def fn(x):
        h = x * 2
        y = remat.native_op(torch.sin, "sin", policy)(h) if policy else h.sin()
        return y, (y * 2).exp(), y.cos()

    region = remat.checkpoint(region_name="results", replay=replay, offload_store=remat.host_memory_store())(fn)
    if nested:
        region = remat.checkpoint(region_name="outer", replay=replay)(lambda x, inner=region: inner(x.exp()))
    y, *others = region(leaf(4, 4))
    data = write(y)
    words = CHANGED.replace("results", "(outer|results)")  # the inner region may have been replayed first
    with pytest.raises(RuntimeError, match=words):
        sum(other.sum() for other in others).backward()
    del data


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_data_of_a_result_may_be_read_and_written_where_nothing_needs_it(replay):
    def program(wrap):
        x = leaf(4, 4)
        y, z = wrap(lambda x: (x.sin() * 2, x.exp()))(x)
        y.data.sum()
        w = wrap(lambda y: y.cos())(y)
        seen = y.data.clone()
        z.data[:, :0].mul_(2)
        (w + y).sum().backward()
        y.data.mul_(2)
        return x.grad, seen, y.detach()

    assert_same(program, remat.checkpoint(region_name="read data", replay=replay))


def test_what_a_region_saves_after_a_write_by_way_of_data_has_the_new_values():
    def program(wrap):
        x = leaf(4, 4)
        y = wrap(lambda x: x * 2)(x)
        y.data.mul_(2)
        wrap(lambda y: y.sin().exp())(y).sum().backward()
        return x.grad, y.detach()

    assert_same(program, remat.checkpoint(region_name="saved later"))


def test_a_result_of_a_save_call_that_the_outer_region_writes_by_way_of_data_raises_in_the_forward():
    def inner(x):
        s = x.sin()
        return (s + 1).exp(), s  # the replay repeats the sum, starting from s

    def outer(x):
        y, s = remat.checkpoint(region_name="inner", policy=["aten::sin"])(inner)(x * 1)
        s.data.mul_(2)
        return y * y.cos()

    for replay in ("function", "tape", "auto"):
        with pytest.raises(NotImplementedError, match=r"region 'outer', slot \d.*expected in-place ops that autograd notices"):
            remat.checkpoint(region_name="outer", replay=replay)(outer)(leaf(2, 4))


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("replay", ["function", "tape", "auto"])
@pytest.mark.parametrize("where", ["in a region", "outside"])
def test_what_a_region_has_read_and_another_writes_by_way_of_data_raises_in_backward(where, replay, size):
    """Autograd sees no write: it uses new values of saved tensors, and old values of the rest."""
    w, x = torch.ones(size), leaf(size)
    region = remat.checkpoint(region_name="reader", replay=replay)
    y = region(lambda x: (x * w.exp()).sin())(x)
    write = remat.checkpoint(replay=replay)(lambda x: (w.data.mul_(2), x.sin())[1])
    z = write(x) if where == "in a region" else (w.data.mul_(2), x.sin())[1]
    with pytest.raises(RuntimeError, match=WRITTEN):
        (y + z).sum().backward()


COPYING = {
    "a weight": lambda w, b, x: w.sin() * x,
    "a part of a weight": lambda w, b, x: w[1:].sin() * x[1:],
    "a captured tensor": lambda w, b, x: b.mul(x.exp()),
    "an argument": lambda w, b, x: x.sin().exp(),
}


@pytest.mark.parametrize("replay", ["function", "tape", "auto"])
@pytest.mark.parametrize("size", [4, 5000])
@pytest.mark.parametrize("policy", [None, ["aten::sin", "aten::mul"], ["*"]], ids=["none", "some", "all"])
@pytest.mark.parametrize("what", COPYING)
def test_what_hooks_have_copied_and_is_written_by_way_of_data_raises(what, policy, size, replay):
    """Plain code without the hooks would use the new values."""
    w, b, x = leaf(size), torch.randn(size), leaf(size) * 1
    copies = (lambda tensor: tensor.clone(), lambda tensor: tensor)
    region = remat.checkpoint(policy=policy, saved_tensors_hooks=copies, replay=replay, region_name=f"copies {what} {policy}")
    y = region(lambda x: COPYING[what](w, b, x))(x)
    {"a captured tensor": b, "an argument": x}.get(what, w).data.mul_(2)
    with pytest.raises(RuntimeError, match=WRITTEN):
        y.sum().backward()


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_what_hooks_have_copied_after_its_op_wrote_it_is_as_it_was(replay):
    def program(wrap):
        torch.manual_seed(0)
        noise, x = torch.zeros(4, 4), leaf(4, 4)
        y = wrap(lambda x: torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True).sin())(x)
        y.sum().backward()
        return x.grad, y.detach(), noise

    copies = (lambda tensor: tensor.clone(), lambda tensor: tensor)
    assert_same(program, remat.checkpoint(policy=["*"], saved_tensors_hooks=copies, replay=replay, region_name="noise"))


def test_what_a_region_in_a_call_writes_is_no_write_to_what_hooks_have_copied():
    def program(wrap):
        plain = wrap(len) is len
        x, w = torch.randn(4, 4), leaf(4, 4)
        h = w.sin()

        def write(h):
            h.copy_(x)
            return x * h

        def call(h):
            return wrap(write)(h) * 2

        kept = call if plain else remat.native_op(call, "call", remat.CheckpointPolicy.OFFLOAD)
        copies = (lambda tensor: tensor.clone(), lambda tensor: tensor)
        outer = wrap if plain else remat.checkpoint(saved_tensors_hooks=copies)
        fn = lambda w: w * kept(h)  # noqa: E731
        y = fn(w) if plain else outer(fn)(w)
        y.sum().backward()
        return w.grad, h

    assert_same(program, checkpointed)


class Passes(torch.autograd.Function):
    """Returns its saved tensor as the gradient of its second argument."""

    @staticmethod
    def forward(ctx, value, leaf):
        ctx.save_for_backward(value)
        return (value * leaf).sum()

    @staticmethod
    def backward(ctx, grad):
        (value,) = ctx.saved_tensors
        return None, value


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("policy", [None, ["*"], ["aten::cos"]], ids=["none", "all", "some"])
@pytest.mark.parametrize("value", ["argument", "captured", "weight", "weight as argument", "made", "kept"])
@pytest.mark.parametrize("engine", ["function", "tape", "auto"])
def test_a_gradient_that_is_a_saved_tensor_has_memory_of_its_own(engine, value, policy, retain):
    """AccumulateGrad takes memory that nobody else has for .grad, and adds to it in place."""

    def program(wrap):
        torch.manual_seed(0)
        x, v, u, z = torch.randn(4), leaf(4), leaf(4), leaf(4)
        values = {
            "argument": lambda x, v_: x,
            "captured": lambda *_: x,
            "weight": lambda *_: v,
            "weight as argument": lambda x, v_: v_,
            "made": lambda x, v_: x.sin() * 2,
            "kept": lambda x, v_: x.cos(),
        }
        region = wrap(lambda x, v_, z: Passes.apply(values[value](x, v_), u) * z)
        seen = []
        for _ in range(3):
            y = region(x, v, z).sum()
            for again in range(1 + retain):
                y.backward(retain_graph=retain and not again)
                u.grad.mul_(1.5)
                seen.append(u.grad.clone())
        u.grad.zero_()
        return x, v, u.grad, z.grad, *seen

    assert_same(program, remat.checkpoint(replay=engine, policy=policy, region_name=f"{engine} {value} {policy} {retain}"))
