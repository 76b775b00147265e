# SPDX-License-Identifier: BSD-3-Clause

"""Tensors that hooks and stores get: after the op that saves them has run, and inside the function's own pairs of hooks."""

import contextlib
import copy
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from behaviours.kept import Watched, save
from programs import leaf
from same import DEVICE, assert_equal, assert_same, plain
from torch.nn import functional as F

import remat_meta as remat
from remat_meta import CheckpointPolicy

SAVE, OFFLOAD = CheckpointPolicy.SAVE, CheckpointPolicy.OFFLOAD
ENGINES = ("function", "tape", "auto")
PAIRS = {
    "remat": lambda pack, unpack: remat.saved_tensors_hooks(pack, unpack),
    "torch": lambda pack, unpack: torch.autograd.graph.saved_tensors_hooks(pack, unpack),
}
both_pairs = pytest.mark.parametrize("pair", PAIRS)
all_engines = pytest.mark.parametrize("engine", ENGINES)


class Copies:
    """Packs copies, and logs the tensors that it packs and unpacks."""

    def __init__(self):
        self.packed, self.unpacked = [], 0

    def pack(self, tensor):
        self.packed.append((*tensor.shape,))
        return tensor.clone()

    def unpack(self, held):
        self.unpacked += 1
        return held.clone()

    def put(self, tensor):  # the interface of a store
        return Ticket(self, self.pack(tensor))

    def pair(self, kind):
        return PAIRS[kind](self.pack, self.unpack)


class Ticket:
    def __init__(self, copies, held):
        self.copies, self.held = copies, held

    def get(self):
        return self.copies.unpack(self.held)


def noisy(x):
    return F.rrelu(x, training=True)


def noisy_in_place(x):
    return F.rrelu(x * 2, training=True, inplace=True)


def by_policy(name, ctx, op, *args, **kwargs):
    return name


PLACES = ("store", "options", "around remat", "around torch", "inside remat", "inside torch", "in the call")


def region_with(place, engine, policy=None):
    """Returns a checkpoint, a function open_pair(where), which opens a pair of hooks if `place` begins with `where`, and the
    Copies, which the checkpoint or that pair uses."""
    copies = Copies()
    options = {"replay": engine, "policy": policy}
    if place == "store":
        options["offload_store"] = copies
    elif place == "options":
        options["saved_tensors_hooks"] = (copies.pack, copies.unpack)
    open_pair = lambda where: copies.pair(place.split()[1]) if place.startswith(where) else contextlib.nullcontext()  # noqa: E731
    return remat.checkpoint(**options), open_pair, copies


@pytest.mark.parametrize("nested", [False, True])
@all_engines
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", [noisy, noisy_in_place])
def test_what_an_op_saves_before_it_writes_it_is_copied_after_that(op, place, engine, nested):
    region, open_pair, copies = region_with(place, engine)
    policy = OFFLOAD if place in ("store", "options") else SAVE

    def call(x):
        if place != "in the call":
            return op(x)
        with copies.pair("remat"):
            return op(x)

    def program(wrap):
        x = leaf(64)
        run = call if wrap is not plain else op

        def fn(x):
            with open_pair("inside") if wrap is not plain else contextlib.nullcontext():
                y = remat.native_op(run, "noisy", policy)(x.sin())
            return (y * 1.5).exp()

        body = wrap(fn)
        if nested:
            body = wrap(lambda x, inner=body: inner(x.cos()).sin())
        with open_pair("around") if wrap is not plain else contextlib.nullcontext():
            y = body(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, region)
    # The outer region has slots for kept calls of an inner region, except those that the inner pair of hooks gets.
    assert copies.packed or (nested and place.startswith("around"))


@pytest.mark.parametrize("nested", [False, True])
@all_engines
@pytest.mark.parametrize("policy", [SAVE, OFFLOAD])
def test_policies_copy_what_an_op_saves_after_it_has_written_it(policy, engine, nested):
    copies = Copies()
    region = remat.checkpoint(policy=lambda *args, **kwargs: policy, offload_store=copies, replay=engine,
                              saved_tensors_hooks=(copies.pack, copies.unpack))

    def program(wrap):
        x = leaf(64)
        body = wrap(lambda x: (noisy(x.sin()) * 1.5).exp())
        if nested:
            body = wrap(lambda x, inner=body: inner(x.cos()).sin())
        y = body(x)
        y.sum().backward()
        return y, x.grad

    assert_same(program, region)
    assert copies.packed


def test_what_an_op_saves_is_packed_in_order():
    shapes = []

    def fn(x, w):
        return save(lambda x: torch.addmm(w[0], x, w).exp(), "a")(x * 1)

    with remat.saved_tensors_hooks(lambda t: shapes.append((*t.shape,)) or t.clone(), lambda t: t):
        x, w = leaf(2, 3), leaf(3, 4)
        remat.checkpoint()(fn)(x, w).sum().backward()
    inputs, kept = shapes[:2], shapes[2:]
    assert inputs == [(2, 3), (3, 4)]
    assert kept == [(3, 4), (2, 4)]  # the weight, then exp's result


def test_an_error_of_a_pack_that_waited_ends_the_forward():
    def pack(tensor):
        raise KeyError("mine")

    x = leaf(8)
    with remat.saved_tensors_hooks(pack, lambda t: t), pytest.raises(KeyError, match="mine"):
        remat.checkpoint()(lambda: save(noisy, "a")(x))()


def test_an_op_that_throws_after_it_has_saved_leaves_nothing():
    copies = Copies()
    x = leaf(4, 4)

    def call(t):
        with contextlib.suppress(RuntimeError):
            torch.linalg.cholesky(-torch.eye(4) * (t * 1))
        return t.exp()

    with copies.pair("remat"):
        y = remat.checkpoint()(lambda t: save(call, "a")(t.sin()))(x)
    expected = torch.autograd.grad(call(x.sin()).sum(), x)
    assert_equal(expected, torch.autograd.grad(y.sum(), x))


# Pairs of hooks that a region's function opens


@both_pairs
@all_engines
def test_a_pair_inside_leaves_bare_code_to_the_replay(pair, engine):
    copies, watched, runs = Copies(), Watched(), []

    def fn(x):
        runs.append(1)
        with copies.pair(pair):
            for i in range(7):
                x = watched(i, x.sin())
        return x

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x)
        if wrap is not plain:
            assert not any(watched.lives(i) for i in range(6))
            assert not copies.packed
        y.sum().backward()
        return y, x.grad

    region = remat.checkpoint(replay=engine)
    torch.manual_seed(7)
    with remat.saved_tensors_hooks(lambda t: t, lambda t: t):  # hooks in plain code, too
        expected = program(plain)
    copies.packed.clear()
    runs.clear()
    torch.manual_seed(7)
    assert_equal(expected, program(region))
    assert not copies.packed and len(runs) == (2 if engine == "function" else 1)


@both_pairs
@all_engines
def test_a_pair_inside_packs_what_save_calls_under_it_keep_once(pair, engine):
    copies = Copies()
    kinds = []
    pack = copies.pack

    def told(tensor):
        if pair == "remat":
            info = remat.current_saved_tensor_info()
            kinds.append((info.kind.name, info.region, info.call))
        return pack(tensor)

    copies.pack = told

    def fn(x):
        before = save(lambda x: x.sin().exp(), "before")(x.cos())
        with copies.pair(pair):
            a = save(lambda x: x.sin().exp(), "a")(x.cos())
        return (a * before).sin()

    def program(wrap):
        if wrap is plain:
            return program_of(lambda x: (x.cos().sin().exp() * x.cos().sin().exp()).sin())
        return program_of(wrap(fn))

    def program_of(fn):
        x = leaf(3)
        y = fn(x)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(region_name="r", replay=engine))
    # exp's result is packed for the node of exp, and again for mul. The argument is recomputed.
    assert len(copies.packed) == 2 and copies.unpacked == 4
    if pair == "remat":
        assert kinds == [("BACKWARD", "r", "a"), ("SAVE_OUTPUT", "r", "a")]


def test_a_result_that_is_read_later_goes_to_the_pair_of_its_call_with_its_context():
    log = []

    def pair(name):
        def pack(tensor):
            info = remat.current_saved_tensor_info()
            log.append((name, info.kind.name, info.context))
            return tensor.clone()

        return remat.saved_tensors_hooks(pack, lambda t: t, capture_context=lambda: f"in {name}")

    def fn(x):
        with pair("one"):
            a = save(torch.sin, "a")(x.cos())
        with pair("two"):
            b = save(torch.sin, "b")(x.cos())
            both = a + b
        return both.exp()

    with pair("around"):
        y = remat.checkpoint(saved_tensors_hooks=pair("options"))(fn)(leaf(3))
    y.sum().backward()
    assert log == [("options", "CHECKPOINT_INPUT", "in options"), ("one", "SAVE_OUTPUT", "in one"),
                   ("two", "SAVE_OUTPUT", "in two")]


@pytest.mark.parametrize("keep", ["innermost_region", "all_regions"])
@pytest.mark.parametrize("where", ["outer", "inner"])
@both_pairs
@pytest.mark.parametrize("engine", ["function", "tape", "auto"])
def test_a_pair_inside_regions_that_nest(engine, pair, where, keep):
    if engine == "tape" and keep == "all_regions":
        pytest.skip("tapes refuse it")
    copies, watched = Copies(), Watched()

    def opened(here, wrap):
        return copies.pair(pair) if here == where and wrap is not plain else contextlib.nullcontext()

    def program(wrap):
        kept = remat.native_op(lambda t: watched("kept", t.sin().exp()), "a", SAVE, keep=keep)

        def inner(x):
            with opened("inner", wrap):
                y = watched("interior", kept(x.cos()).sin())
            return y.exp()

        def outer(x):
            with opened("outer", wrap):
                y = watched("argument", x.sin())
                y = wrap(inner)(y)
            return (y * 2).sin()

        x = leaf(3)
        y = wrap(outer)(x)
        if wrap is not plain:
            assert not any(map(watched.lives, ("interior", "argument")))
            assert not watched.lives("kept")
        y.sum().backward()
        return y, x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(program, remat.checkpoint(replay=engine))
    # The outer region keeps only what all regions keep: its replay recomputes the rest. A result is packed once for each region
    # that keeps it.
    packs = {"outer": 0, "inner": 2}[where] if keep == "innermost_region" else 3
    assert len(copies.packed) == packs


@both_pairs
def test_a_pair_inside_gets_offload_calls_that_have_no_other_place(pair):
    copies = Copies()

    def fn(x):
        with copies.pair(pair):
            return remat.native_op(lambda t: t.sin().exp(), "a", OFFLOAD)(x.cos()).exp()

    def program(wrap):
        x = leaf(3)
        y = wrap(fn)(x) if wrap is not plain else x.cos().sin().exp().exp()
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint())
    assert len(copies.packed) == 2


@both_pairs
def test_a_pair_inside_a_save_call_gets_no_argument_that_is_made_again(pair):
    copies = Copies()

    def call(x):
        with copies.pair(pair):
            return x.sin().exp()

    y = remat.checkpoint()(lambda x: save(call, "a")(x.cos()))(leaf(3))
    assert len(copies.packed) == 1  # exp's result; not the argument of cos, which sin saves
    y.sum().backward()
    assert len(copies.packed) == copies.unpacked == 1


# Results that user code must bring back


class Group:
    """Offloads the tensors that SAVE calls keep, and brings all of them back at once."""

    def __init__(self):
        self.away, self.here = [], {}

    def pack(self, tensor):
        if remat.current_saved_tensor_info().kind is remat.SavedTensorKind.CHECKPOINT_INPUT:
            return tensor
        self.away.append(tensor.clone())
        return len(self.away) - 1

    def unpack(self, held):
        return held if torch.is_tensor(held) else self.here[held]

    def bring_back(self):
        self.here = dict(enumerate(self.away))

    def scope(self):
        return remat.saved_tensors_hooks(self.pack, self.unpack)


@pytest.mark.parametrize("where", ["options", "around", "inside"])
@pytest.mark.parametrize("engine", ["function", "auto"])
@pytest.mark.torch_warns
def test_a_group_is_brought_back_at_the_top_of_the_function(engine, where):
    group = Group()
    options = {"saved_tensors_hooks": group.scope()} if where == "options" else {}

    def scope(here):
        return group.scope() if here == where else contextlib.nullcontext()

    def program(wrap):
        def fn(x):
            if remat.is_recomputing():
                group.bring_back()
            with scope("inside"):
                a = save(lambda x: x.sin().exp(), "a")(x.cos())
                b = save(lambda x: x.cos().exp(), "b")(a)
            return (a.exp() * b).sin()

        x = leaf(3)
        with scope("around"):
            y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad

    assert_same(lambda wrap: program(wrap) if wrap is not plain else plain_group(), remat.checkpoint(replay=engine, **options))
    assert group.away


def plain_group():
    x = leaf(3)
    a = x.cos().sin().exp()
    y = (a.exp() * a.cos().exp()).sin()
    y.sum().backward()
    return y, x.grad


def test_a_result_is_asked_for_once_in_a_replay_and_in_the_state_from_before_it():
    seen = []

    def unpack(held):
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled(DEVICE), remat.is_recomputing()))
        return held * 1

    def fn(x):
        with torch.autocast(DEVICE, torch.bfloat16):
            a = save(torch.sin, "a")(x.cos())
            return (a.exp() * a).sum() + a.cos().sum()

    hooks = (lambda t: t.clone(), unpack)
    remat.checkpoint(saved_tensors_hooks=hooks)(fn)(leaf(3)).backward()
    assert seen == [(False, False, False)]


def test_an_error_of_an_unpack_in_the_replay_reaches_the_caller_though_the_function_catches():
    def unpack(held):
        raise KeyError("not here")

    def fn(x):
        a = x
        with contextlib.suppress(KeyError):
            a = save(torch.sin, "a")(x.cos())
        return a.exp()

    y = remat.checkpoint(saved_tensors_hooks=(lambda t: t.clone(), unpack))(fn)(leaf(3))
    with pytest.raises(KeyError, match="not here"):
        y.sum().backward()


@all_engines
def test_a_copy_of_a_function_shares_its_store(engine):
    store = remat.host_memory_store()
    assert copy.copy(store) is store
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    model.run = remat.checkpoint(offload_store=store, policy=remat.save_matmuls(), replay=engine)(model[0])
    copied = copy.deepcopy(model)
    for module in (model, copied):
        module.run(torch.ones(2, 3)).sin().sum().backward()
    assert_equal(model[0].weight.grad, copied[0].weight.grad)


@all_engines
@pytest.mark.parametrize("inner", [None, "host"])
def test_masks_are_kept_as_bits(engine, inner):
    store = remat.mask_store(inner and remat.offload(inner, min_bytes=0))
    rules = remat.PolicyTable().op("aten::gt*", OFFLOAD).op("aten::native_dropout", OFFLOAD)

    def program(wrap):
        x = leaf(64, 32)
        y = wrap(lambda x: torch.native_dropout(torch.where(x.sin() > 0, x, x * 0.1), 0.5, True)[0])(x)
        y.square().sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(policy=rules, offload_store=store, replay=engine))
    stats = store.stats()
    assert stats["count"] == 2 and stats["mask_bytes"] == 2 * 64 * 32
    assert stats["packed_bytes"] == stats["mask_bytes"] // 8


def test_a_mask_store_wants_a_store():
    for other in ("host", 1, remat.OffloadStore):
        with pytest.raises(TypeError, match=r"\[mask_store\] store: expected what offload\(\), .* got"):
            remat.mask_store(other)


@all_engines
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("is_held", [False, True], ids=["", "held outside"])
def test_numbers_are_kept_rounded(engine, dtype, is_held):
    store = remat.rounding_store(dtype, remat.offload("host", min_bytes=0))
    rules = remat.PolicyTable().op("aten::tanh", OFFLOAD)
    held = []

    def gradient(wrap):
        def body(x):
            y = x.sin().tanh()
            held.append(y.detach() if is_held else None)
            return y.square()

        x = torch.linspace(-1, 1, 64 * 32).view(64, 32).clone().requires_grad_()
        wrap(body)(x).sum().backward()
        return x.grad

    exact = gradient(lambda body: body)
    region = remat.checkpoint(policy=rules, offload_store=store, replay=engine, determinism_check="none")
    got = gradient(region)
    stats = store.stats()
    assert stats["count"] == 1 and stats["tensor_bytes"] == 64 * 32 * 4
    assert stats["rounded_bytes"] == 64 * 32 * dtype.itemsize
    assert 0 < stats["max_relative_error"] < 0.1 and 0 < stats["max_error"] < 0.1
    # Whoever holds the memory has the exact values.
    assert torch.equal(got, exact) == is_held
    assert (got - exact).norm() < 0.2 * exact.norm()


@all_engines
@pytest.mark.parametrize("inner", ["function", "tape"])
@pytest.mark.parametrize("is_held", [False, True], ids=["", "held outside"])
def test_what_is_inside_of_a_region_that_rounds_is_as_near(engine, inner, is_held):
    weight, held = torch.linspace(-1, 1, 32 * 32).view(32, 32) / 6, []

    def inside(x):
        y = (x @ weight).tanh()
        held.append(y if is_held else None)
        return y.sin()

    def gradient(wrap):
        x = torch.linspace(-1, 1, 16 * 32).view(16, 32).clone().requires_grad_()
        wrap(lambda x: remat.checkpoint(replay=inner)(inside)(x.exp()) * x)(x).square().sum().backward()
        return x.grad

    exact = gradient(lambda body: body)
    for rules in (remat.PolicyTable().op("aten::exp", OFFLOAD), None):
        options = {"policy": rules} if rules else {"offload_inputs": True}
        store = remat.rounding_store(torch.bfloat16)
        got = gradient(remat.checkpoint(offload_store=store, replay=engine, determinism_check="none", **options))
        assert store.stats()["count"] == (1 if rules else 0)  # a leaf stays
        assert (got - exact).norm() < 0.05 * exact.norm()


def test_a_store_of_ones_own_may_round():
    class Halves(remat.OffloadStore):
        is_exact = False

        def put(self, tensor):
            kept = tensor.half()
            return SimpleNamespace(get=lambda: kept.to(tensor.dtype))

    rules, held = remat.PolicyTable().op("aten::tanh", OFFLOAD), []

    def body(x):
        y = x.sin().tanh()
        held.append(y.detach())
        return y.square()

    def gradient(**options):
        x = torch.linspace(-1, 1, 64).requires_grad_()
        remat.checkpoint(policy=rules, offload_store=Halves(), **options)(body)(x).sum().backward()
        return x.grad

    assert gradient(determinism_check="none").isfinite().all()
    with pytest.raises(ValueError, match="determinism: expected kNone"):
        gradient()
    Halves.is_exact = True
    with pytest.raises(RuntimeError, match="expected memory that somebody else has, too, as the forward saved it"):
        gradient()


def test_threads_share_stores_that_pack():
    engine = remat.offload("host", min_bytes=0, max_leaving_bytes=1, prefetch_bytes=1 << 16)  # put() waits for copies
    rounding = remat.rounding_store(torch.bfloat16, engine)
    store = remat.mask_store(rounding)
    rules = remat.PolicyTable().op("aten::tanh", OFFLOAD).op("aten::gt*", OFFLOAD)
    region = remat.checkpoint(policy=rules, offload_store=store, offload_inputs=True, determinism_check="none")
    gradients = []

    def work():
        for _ in range(20):
            h = x = torch.linspace(-1, 1, 1 << 16).requires_grad_()
            for _ in range(4):
                h = region(lambda t: torch.where(t > 0, t, t * 0.1).tanh().square())(h)
            h.sum().backward()
        gradients.append(x.grad)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(gradients) == 4
    assert all(torch.equal(gradients[0], gradient) for gradient in gradients)
    assert store.stats()["count"] == 4 * 20 * 4
    assert rounding.stats()["count"] == 4 * 20 * (4 + 3)  # the leaf is not rounded
    assert engine.stats()["away_bytes"] == 0


def test_rounding_is_never_silent():
    store = remat.rounding_store(torch.bfloat16)
    for determinism_check in ("default", None):
        options = {} if determinism_check is None else {"determinism_check": determinism_check}
        with pytest.raises(ValueError, match=r'region \'r\': determinism: expected kNone \(determinism_check="none" in Python\)'):
            remat.checkpoint(region_name="r", offload_store=store, **options)(torch.sin)(leaf(2))
    with pytest.raises(ValueError, match=r"dtype: expected one of torch.bfloat16, .*, got torch.float32"):
        remat.rounding_store(torch.float32)
    with pytest.raises(TypeError, match=r"dtype: expected a torch.dtype, got str"):
        remat.rounding_store("bfloat16")
    with pytest.raises(TypeError, match=r"store: expected what offload\(\)"):
        remat.rounding_store(torch.bfloat16, "host")
