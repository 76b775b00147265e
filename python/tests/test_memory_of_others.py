# SPDX-License-Identifier: BSD-3-Clause

"""Memory that autograd has saved and that somebody else also holds: backward gets that memory, as in plain code."""

import threading
import weakref

import pytest
import torch
from programs import SavesExp, leaf
from same import DEVICE, assert_same, plain

import remat_meta as remat

REPLAYS = ("function", "tape", "auto")
SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD
CALLS = {"bare": None, "SAVE": SAVE, "OFFLOAD": OFFLOAD}


class ReadsAnAttribute(torch.autograd.Function):
    """Saves a tensor that it also has as an attribute; its backward writes one and reads the other."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        ctx.save_for_backward(ctx.kept)
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        saved.add_(1)
        return grad * ctx.kept


class WritesAnAttribute(ReadsAnAttribute):
    @staticmethod
    def backward(ctx, grad):
        ctx.kept.mul_(2)
        (saved,) = ctx.saved_tensors
        return grad * saved


class ReadsAnAttributeAfter(ReadsAnAttribute):
    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        ctx.kept.mul_(2)
        return grad * saved


class WritesItsResult(SavesExp):
    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        before = grad * y
        y.mul_(3)
        return before


class KeepsAView(ReadsAnAttribute):
    """Saves a part of the memory, in another order."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        ctx.save_for_backward(ctx.kept.t()[1:, ::2])
        return x * ctx.kept


def region(replay, **options):
    return remat.checkpoint(region_name="others", replay=replay, **options)


def options_of(call):
    return {"offload_store": remat.host_memory_store()} if call == "OFFLOAD" else {}


def called(wrap, fn, policy):
    """Returns fn as a named call; in the plain run, fn itself."""
    return fn if wrap is plain or policy is None else remat.native_op(fn, "call", policy)


def gradient_and_result(function, policy):
    def program(wrap):
        x = leaf(4, 4)
        y = wrap(lambda x: called(wrap, function.apply, policy)(x.sin()))(x)
        y.sum().backward()
        return x.grad, y.detach().clone()

    return program


def gradient_and_what_is_left(function, policy):
    def program(wrap):
        x, left = leaf(4, 4), []

        def fn(x):
            left.append(called(wrap, function.apply, policy)(x.sin()))
            return left[-1].cos() * 2

        wrap(fn)(x).sum().backward()
        return x.grad, left[0].detach().clone()

    return program


def nested(function, policy):
    def program(wrap):
        x = leaf(4, 4)
        inner = wrap(lambda x: called(wrap, function.apply, policy)(x.sin()))
        y = wrap(lambda x: inner(x * 2) + 1)(x)
        y.sum().backward()
        return x.grad, y.detach().clone()

    return program


FUNCTIONS = (ReadsAnAttribute, WritesAnAttribute, ReadsAnAttributeAfter, WritesItsResult, KeepsAView)


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("program_of", (gradient_and_result, gradient_and_what_is_left, nested))
def test_a_backward_writes_what_it_has_saved_for_all_who_have_it(program_of, function, call, replay):
    try:
        expected = program_of(function, None)(plain)
    except RuntimeError:  # plain code raises, too, where a version shows the write
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            program_of(function, CALLS[call])(region(replay, **options_of(call)))
        return
    assert expected
    assert_same(program_of(function, CALLS[call]), region(replay, **options_of(call)))


def by_numpy(y):
    y.detach().numpy()[:] = 3


def by_an_op_without_a_version(y):
    with torch.no_grad():  # takes y for running statistics, and writes it
        torch.nn.functional.batch_norm(torch.randn(6, 4), y[0].detach(), torch.ones(4), training=True)


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize(
    "call, is_left", [("bare", False), ("bare", True), ("SAVE", False), ("OFFLOAD", False), ("OFFLOAD", True)]
)
@pytest.mark.parametrize("write", [by_numpy, by_an_op_without_a_version])
def test_what_is_written_without_a_version_raises_while_somebody_has_the_memory(write, call, is_left, replay):
    def program(wrap):
        x, left = leaf(4, 4), []
        exp = called(wrap, torch.exp, CALLS[call])

        def fn(x):
            y = exp(x.sin())
            if is_left:
                left.append(y)
            return (y * y).cos() if is_left else y

        y = wrap(fn)(x)
        write(left[0] if is_left else y)
        y.sum().backward()
        return x.grad

    program(plain)
    is_seen = write is by_an_op_without_a_version and (call == "bare" or is_left)  # by batch norm: seen on a device, too
    if call == "SAVE" or (DEVICE == "cuda" and not is_seen):  # the region or backward reads that very memory
        assert_same(program, region(replay, **options_of(call)))
        return
    words = (
        r"region 'others', slot \d+ .*expected the tensor as the forward saved it.*native_batch_norm has written since"
        if is_seen
        else r"region 'others', (slot \d+|call 'call').*expected memory that somebody else has.*written without a new version"
    )
    with pytest.raises(RuntimeError, match=words):
        program(region(replay, **options_of(call)))


LAYOUTS = {
    "transposed": lambda y: y.t(),
    "part": lambda y: y[1:, ::2],
    "expanded": lambda y: y[:, :1].expand(4, 4),
    "scalar": lambda y: y[1, 2],
    "complex": lambda y: torch.complex(y, y * 2),
    "conjugated": lambda y: torch.complex(y, y * 2).conj(),
    "negated": lambda y: torch.complex(y, y * 2).conj().imag,
    "double": lambda y: y.double(),
    "empty": lambda y: y[:0],
}


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_way_it_lies_there(layout, replay):
    def program(wrap):
        x, left = leaf(4, 4), []

        def fn(x):
            z = LAYOUTS[layout](x.sin())
            left.append(z)
            return (z * z.exp()).abs()

        wrap(fn)(x).sum().backward()
        return x.grad, left[0].detach().resolve_conj().resolve_neg()

    assert_same(program, region(replay))


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class SavesAndWrites(Saves):
    @staticmethod
    def backward(ctx, grad):
        ctx.saved_tensors[0].mul_(2)
        return grad


@pytest.mark.parametrize("replay", REPLAYS)
def test_another_slot_on_the_memory_that_a_backward_has_written_raises_as_in_plain_code(replay):
    def program(wrap):
        x, left = leaf(4), []

        def fn(x):
            h = x.sin()
            left.append(h)
            first = Saves.apply(h)  # the backward of Saves runs last
            return first + SavesAndWrites.apply(h)

        wrap(fn)(x).sum().backward()
        return x.grad

    for wrap in (plain, region(replay)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            program(wrap)


@pytest.mark.parametrize("replay", REPLAYS)
def test_a_second_backward_over_what_the_first_has_written_raises_as_in_plain_code(replay):
    for wrap in (plain, region(replay)):
        x = leaf(4)
        y = wrap(lambda x: WritesItsResult.apply(x.sin()))(x)
        y.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("replay", REPLAYS)
def test_the_graph_of_a_backward_notices_later_writes(replay):
    def second(wrap):
        x = leaf(4)
        y = wrap(lambda x: x.sin().exp())(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        with torch.no_grad():
            y.mul_(2)
        g.sum().backward()

    for wrap in (plain, region(replay)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second(wrap)


@pytest.mark.parametrize("replay", REPLAYS)
def test_nothing_holds_the_memory(replay):
    x = leaf(4)
    left = []

    def fn(x):
        h = x.sin()
        left.append(weakref.ref(h.untyped_storage()))
        return h.exp().sum()

    y = region(replay)(fn)(x)
    assert left[0]() is None
    y.backward()


@pytest.mark.parametrize("replay", REPLAYS)
def test_a_leaf_does_not_take_the_memory_of_others_for_its_gradient(replay):
    def program(wrap):
        x, left = leaf(4), []

        def fn(x):
            left.append(torch.full((4,), 2.0))
            return GivesSaved.apply(x, left[-1])

        wrap(fn)(x).backward()
        x.grad.add_(1)
        return x.grad, left[0]

    assert_same(program, region(replay))


@pytest.mark.parametrize("replay", REPLAYS)
def test_backwards_of_two_threads(replay):
    def program(wrap):
        x = leaf(4)
        ys = [wrap(lambda x: WritesItsResult.apply(x.sin()))(x) for _ in range(2)]
        threads = [threading.Thread(target=y.sum().backward) for y in ys]
        for thread in threads:
            thread.start()
            thread.join()
        return x.grad, *(y.detach() for y in ys)

    assert_same(program, region(replay))


class GivesSaved(torch.autograd.Function):
    """Its backward returns its saved tensor as a gradient, to which autograd may add."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.save_for_backward(c)
        return (x * c).sum()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None


class GivesAttribute(torch.autograd.Function):
    """Its backward returns an attribute as a gradient, and releases it."""

    @staticmethod
    def forward(ctx, x, c):
        ctx.kept = c.data
        return (x * c).sum()

    @staticmethod
    def backward(ctx, grad):
        kept, ctx.kept = ctx.kept, None
        return kept, None


def sum_of_gradients(function):
    def program(wrap):
        x = leaf(4)

        def fn(x):
            c = x.detach().exp()
            return (x * c).sum() + x.sum() + function.apply(x, c)

        y = wrap(fn)(x)
        retain = function is GivesSaved
        return [torch.autograd.grad(y, x, retain_graph=retain)[0].clone() for _ in range(1 + retain)]

    return program


OFFLOADED = {"policy": remat.PolicyTable().op("*", OFFLOAD), "offload_store": remat.host_memory_store()}


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("options", [{}, OFFLOADED], ids=["recomputed", "offloaded"])
def test_autograd_adds_to_a_gradient_that_is_a_saved_tensor(options, replay):
    assert_same(sum_of_gradients(GivesSaved), region(replay, **options))


@pytest.mark.parametrize("replay", REPLAYS)
def test_autograd_adds_to_memory_that_a_context_has_given_away(replay):
    """In plain code autograd also holds that memory, and so adds out of place."""
    assert_same(sum_of_gradients(GivesAttribute), region(replay))
    with pytest.raises(RuntimeError, match="expected memory that somebody else has.*returned it as a gradient"):
        sum_of_gradients(GivesAttribute)(region(replay, **OFFLOADED))


HOOKS = {
    "copy": lambda: torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t),
    "same": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "remat's": lambda: remat.saved_tensors_hooks(torch.clone, lambda t: t),
}


def under(hooks, where, wrap, fn):
    """Runs fn in a region, with hooks around it, in it, or in a region around it."""

    def hooked(fn):
        def run(x):
            with HOOKS[hooks]():
                return fn(x)

        return run

    if where == "inside":
        return wrap(hooked(fn))
    return hooked(wrap(fn)) if where == "round" else wrap(hooked(wrap(fn)))


HOOKED = r"region 'others', slot \d+ .*under saved-tensor hooks.*clone\(\)"


@pytest.mark.parametrize("replay", ("function", "auto"))
@pytest.mark.parametrize("where", ["round", "inside", "between"])
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("function", [ReadsAnAttribute, ReadsAnAttributeAfter, WritesItsResult])
def test_where_hooks_may_have_copied_a_write_raises(function, hooks, where, replay):
    def program(wrap, function):
        x = leaf(4)
        y = under(hooks, where, wrap, lambda x: function.apply(x.sin()))(x)
        y.sum().backward()
        return x.grad

    with pytest.raises(NotImplementedError, match=HOOKED):
        program(region(replay), function)
    # No region is left, and a backward that writes nothing is right.
    assert_same(lambda wrap: program(wrap, Saves), region(replay))


STORES = {
    "engine": lambda: remat.offload(min_bytes=0),
    "engine without room": lambda: remat.offload(min_bytes=0, max_bytes=0),
    "host memory": remat.host_memory_store,
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("where", ["round", "inside", "between"])
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("function", [ReadsAnAttribute, ReadsAnAttributeAfter, WritesItsResult])
def test_a_write_to_what_a_store_has_brought_back_under_hooks_raises(function, hooks, where, store):
    def program(wrap, function):
        x = leaf(4)
        y = under(hooks, where, wrap, lambda x: called(wrap, function.apply, OFFLOAD)(x.sin()))(x)
        y.sum().backward()
        return x.grad

    with pytest.raises(NotImplementedError, match=r"call 'call' \(OFFLOAD\), tensor 'saved.0' .*under saved-tensor hooks.*clone"):
        program(region("function", offload_store=STORES[store]()), function)
    assert_same(lambda wrap: program(wrap, Saves), region("function", offload_store=STORES[store]()))


class WritesOneOfTwo(torch.autograd.Function):
    """Saves a tensor and a view of it; its backward writes the one and reads the other."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y, y[:])
        return x * y

    @staticmethod
    def backward(ctx, grad):
        first, second = ctx.saved_tensors
        first.mul_(2)
        return grad * second


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("hooks", HOOKS)
def test_a_write_to_one_of_two_saved_tensors_of_one_memory_raises_under_hooks(hooks, replay):
    x = leaf(4)
    y = under(hooks, "round", region(replay), lambda x: WritesOneOfTwo.apply(x.sin()))(x)
    with pytest.raises(NotImplementedError, match="slot 1 .*another saved tensor has that memory"):
        y.sum().backward()


class WritesItsArgument(Saves):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x.mul_(3)
        return grad * x.sum()


@pytest.mark.parametrize("shared", [False, True], ids=["own copies", "one copy"])
def test_a_replay_that_begins_with_what_another_region_has_written_under_hooks_raises(shared):
    def step(wrap):
        copies = {}

        def pack(tensor):
            copy = tensor.detach().clone()
            return copies.setdefault(tensor.data_ptr(), copy) if shared else copy

        x = torch.linspace(-1, 1, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda copy: copy):
            both = x + 1
            y = wrap(lambda t: (t + 1).exp())(both) + wrap(WritesItsArgument.apply)(both)
        del both
        y.sum().backward()
        return [x.grad]

    wrap = remat.checkpoint(replay="function")
    if shared:
        with pytest.raises(NotImplementedError, match="the replay of another region begins with that memory"):
            step(wrap)
    else:
        for want, got in zip(step(plain), step(wrap), strict=True):
            assert torch.equal(want, got)


class WritesAView(torch.autograd.Function):
    """Saves a view of its argument, which autograd counts as a leaf, and writes it in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x[1:])
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (view,) = ctx.saved_tensors
        view.mul_(3)
        return grad * view.sum()


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("of_argument", [False, True], ids=["of a result", "of the argument"])
@pytest.mark.parametrize("hooks", HOOKS)
def test_a_write_to_a_view_of_another_saved_tensor_raises_under_hooks(hooks, of_argument, replay):
    def fn(x):
        a = x if of_argument else x.sin()
        return a.cos() * WritesAView.apply(a)

    y = under(hooks, "round", region(replay), fn)(leaf(4) * 1)
    # Plain code, too, finds that an argument was written if the hooks have copied nothing.
    with pytest.raises(RuntimeError, match="another saved tensor has that memory|is at version 1"):
        y.sum().backward()


def test_a_write_to_one_of_two_copies_of_a_store_raises():
    def program(wrap):
        x = leaf(4)
        fn = wrap(lambda x: called(wrap, WritesOneOfTwo.apply, OFFLOAD)(x.sin()))
        fn(fn(fn(x))).sum().backward()
        return x.grad

    with pytest.raises(NotImplementedError, match="a store has brought back.*another saved tensor has that memory"):
        program(region("function", offload_store=remat.host_memory_store()))
    engine = remat.offload(min_bytes=0, max_leaving_bytes=0)  # the tensor that was put first has left
    assert_same(program, region("function", offload_store=engine))  # fetched tensors share memory again
    assert engine.stats()["fetched_count"] > 0


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("hooks", HOOKS)
def test_a_write_under_hooks_raises_where_the_graph_is_retained(hooks, replay):
    def backward(wrap, **options):
        x = leaf(4)
        under(hooks, "round", wrap, lambda x: SavesAndWrites.apply(x.sin()))(x).sum().backward(**options)
        return x.grad

    with pytest.raises(NotImplementedError, match="the graph is retained for another backward"):
        backward(region(replay), retain_graph=True)
    assert_same(backward, region(replay))  # no later backward sees the write


@pytest.mark.parametrize("hooks", HOOKS)
def test_what_is_kept_and_cut_under_hooks_is_not_written_by_backward_either(hooks):
    def program(wrap):
        x = leaf(4)

        def fn(x):
            with HOOKS[hooks]():
                return ReadsAnAttribute.apply(x).clone().sin()

        wrap(fn)(x).sum().backward()
        return x.grad

    cut = region("tape", cuts=remat.Cuts([1]), policy=remat.PolicyTable().op("aten::exp", SAVE))
    with pytest.raises(NotImplementedError, match="under saved-tensor hooks"):
        program(cut)


@pytest.mark.parametrize("replay", REPLAYS)
def test_an_optimizer_may_step_in_backward_under_hooks(replay):
    def program(wrap):
        w, x = leaf(4), leaf(4)
        w.register_post_accumulate_grad_hook(step)
        with HOOKS["copy"]():
            y = wrap(lambda x: (x * w).sin())(x)
        y.sum().backward()
        return x.grad, w.detach()

    def step(w):
        with torch.no_grad():
            w.sub_(w.grad)

    assert_same(program, region(replay))


@pytest.mark.parametrize("replay", REPLAYS)
def test_memory_that_somebody_has_freed_is_made_again(replay):
    def program(wrap):
        x, left = leaf(4), []

        def fn(x):
            left.append(x.exp())
            return left[-1].sin()

        y = wrap(fn)(x)
        if wrap is not plain:  # plain code would read freed memory
            left[0].untyped_storage().resize_(8)
        y.sum().backward()
        return x.grad

    assert_same(program, region(replay))
