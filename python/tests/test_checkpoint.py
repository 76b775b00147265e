# SPDX-License-Identifier: BSD-3-Clause

"""checkpoint(options)(fn)(args...): gradients, buffers and random streams of a plain run."""

import collections
import contextvars
import faulthandler
import sys
import threading
import time
import typing

import pytest
import torch
from same import assert_equal, assert_same
from torch import nn

import remat_meta as remat

checkpointed = remat.checkpoint(region_name="block")


def grads_of(model, *more):
    return [p.grad for p in model.parameters()] + list(model.buffers()) + [t.grad for t in more]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Square(torch.autograd.Function):
    """Saves through Python's half of autograd."""

    forwards = 0

    @staticmethod
    def forward(ctx, x):
        Square.forwards += 1
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_mlp_with_dropout_and_batch_norm_is_bitwise_plain():
    def program(wrap):
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.4),
            nn.Linear(16, 8), nn.GELU(),
        )
        x = leaf(4, 8)
        for _ in range(2):
            wrap(model)(x).pow(2).sum().backward()
        return grads_of(model, x)

    *_, count = [t for t in assert_same(program, checkpointed) if t.dtype == torch.int64]
    assert count == 2  # batches, one for each forward


def test_nested_regions_to_depth_three():
    def program(wrap):
        layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3)) for _ in range(4)]

        def inner(x):
            return wrap(layers[1])(wrap(layers[0])(x)).sin()

        def middle(x):
            return wrap(layers[2])(wrap(inner)(x))

        x = leaf(3, 6)
        wrap(lambda x: wrap(layers[3])(wrap(middle)(x)).cos())(x).sum().backward()
        return [g for layer in layers for g in grads_of(layer)] + [x.grad]

    assert_same(program, checkpointed)


def test_retain_graph_partial_grads_and_several_backwards():
    def program(wrap):
        x, w = leaf(3, 5), leaf(5, 5)
        a, b = wrap(lambda x: ((x @ w).sin(), (x @ w).cos().exp()))(x)
        (partial,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(b.sum(), w, retain_graph=True)
        (a * b).sum().backward(retain_graph=True)
        (a + b).sum().backward()
        return partial, other, x.grad, w.grad

    assert_same(program, checkpointed)


def test_double_backward():
    def program(wrap):
        x = leaf(4, 4)
        y = wrap(lambda x: (x.sin() @ x).exp())(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return first, x.grad

    assert_same(program, checkpointed)


def test_in_place_on_outputs_is_legal():
    def program(wrap):
        x = leaf(4, 4)
        y, z = wrap(lambda x: (x.sin() * x, x.exp() + x))(x)
        y.mul_(3)
        z.add_(y)
        z.sum().backward()
        return x.grad, y, z

    assert_same(program, checkpointed)


def test_autograd_grad_inside_the_region():
    def energy_and_force(x):
        energy = (x.sin() * x).pow(2).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, force

    def program(wrap):
        x = leaf(5)
        energy, force = wrap(energy_and_force)(x)
        (energy + force.pow(2).sum()).backward()
        return energy, force, x.grad

    assert_same(program, checkpointed)


def test_custom_function_inside_runs_again():
    Square.forwards = 0
    x = leaf(4)
    y = checkpointed(lambda x: Square.apply(Square.apply(x)))(x)
    assert Square.forwards == 2
    y.sum().backward()
    assert Square.forwards == 4
    assert_equal(4 * x**3, x.grad)


def test_custom_function_inside_is_bitwise_plain():
    def program(wrap):
        x = leaf(4)
        wrap(lambda x: Square.apply(x.sin()).exp())(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_autocast_of_the_forward_holds_in_the_replay():
    def program(wrap):
        w, x = leaf(8, 8), leaf(4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = wrap(lambda x: (x @ w).relu() @ w)(x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        return x.grad, w.grad

    assert_same(program, checkpointed)


Point = collections.namedtuple("Point", "x y")


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class MyTuple(tuple):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a,
        lambda a, b: (a, b),
        lambda a, b: [a, (b, [a])],
        lambda a, b: {"a": a, "b": {"c": [b]}},
        lambda a, b: Point(a, (b,)),
        lambda a, b: Pair(a, b),
        lambda a, b: torch.return_types.max([a, b]),
        lambda a, b: MyTuple((a, b)),
        lambda a, b: collections.OrderedDict(a=a, b=b),
    ],
    ids=["tensor", "tuple", "list", "dict", "namedtuple", "NamedTuple", "structseq", "subclass", "OrderedDict"],
)
def test_any_nesting_of_tensors_comes_back_as_it_is(make):
    seen = []

    def fn(x):
        seen.append(make(x.sin(), x.exp() * x))
        return seen[-1]

    def program(wrap):
        x = leaf(3)
        out = wrap(fn)(x)
        assert out is seen[-1]
        sum(t.sum() for t in torch.utils._pytree.tree_leaves(list_of(out))).backward()
        return x.grad

    assert_same(program, checkpointed)


def list_of(out):
    if torch.is_tensor(out):
        return [out]
    return [t for item in (out.values() if isinstance(out, dict) else out) for t in list_of(item)]


def test_an_input_returned_as_it_is_stays_the_same_object():
    x = leaf(3)
    y, z = checkpointed(lambda x: (x, x.sin()))(x)
    assert y is x
    (y + z).sum().backward()
    assert_equal(1 + x.cos(), x.grad)


@pytest.mark.parametrize(
    ("out", "path"),
    [(None, ""), ((1.5,), r"\[0\]"), ({"a": [None]}, r"\['a'\]\[0\]"), (object(), "")],
)
@pytest.mark.parametrize("grad", [True, False])
def test_other_leaves_are_rejected_by_name(out, path, grad):
    with torch.set_grad_enabled(grad):
        with pytest.raises(RuntimeError, match=rf"region 'block', output{path}: fn must return a Tensor.*got "):
            checkpointed(lambda x: out)(leaf(2))
    checkpointed(torch.sin)(leaf(2)).sum().backward()  # nothing was left open


def test_an_empty_nesting_is_returned():
    assert checkpointed(lambda x: ())(leaf(2)) == ()


def test_keywords_containers_and_opaque_arguments_reach_fn_in_both_runs():
    class Opaque:
        pass

    opaque, runs = Opaque(), []

    def fn(x, *more, scale, region_name, config):
        runs.append((more, scale, region_name, config["name"], config["opaque"]))
        return (x * scale + config["deep"][0]["w"] * more[0][1]).sin()

    x, w, v = leaf(3), leaf(3), leaf(3)
    config = {"deep": [{"w": w}], "opaque": opaque, "name": "n"}
    checkpointed(fn)(x, [1, v], (), scale=2.0, region_name="mine", config=config).sum().backward()
    assert len(runs) == 2
    assert runs[0][1:] == runs[1][1:] == (2.0, "mine", "n", opaque)
    assert runs[1][0][0][1] is v and runs[1][0][1] == ()
    assert x.grad is not None and w.grad is not None and v.grad is not None


def test_a_replay_gets_containers_as_they_were_at_the_call():
    x, seen = leaf(3), []

    def fn(x, state):
        seen.append(list(state))
        state.append(x.sin())
        return state[-1] * len(state)

    state = []
    y = checkpointed(fn)(x, state)
    state.append("later")
    y.sum().backward()
    assert seen == [[], []]
    assert len(state) == 2  # the replay wrote to a list of its own


def test_a_container_passed_twice_is_one_container_in_the_replay():
    same = []
    x = leaf(3)
    items = [x]
    items.append(items)  # holds itself

    def fn(a, b):
        same.append(a is b and a[1] is a)
        return a[0].sin()

    checkpointed(fn)(items, items).sum().backward()
    assert same == [True, True]


def test_classes_and_attributes_of_tensor_arguments_hold_in_the_replay():
    class Tagged(torch.Tensor):
        pass

    kinds = []

    def fn(tagged, frozen, weight):
        kinds.append((type(tagged), getattr(tagged, "tag", None), type(frozen), weight))
        return (weight * 2 * frozen).sin() + torch.sin(tagged).as_subclass(torch.Tensor)

    tagged = torch.randn(3).as_subclass(Tagged)
    tagged.tag = "t"
    frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    weight = nn.Parameter(torch.randn(3))
    checkpointed(fn)(tagged, frozen, weight).sum().backward()
    assert kinds[0][:3] == kinds[1][:3] == (Tagged, "t", nn.Parameter)
    assert kinds[1][3] is weight


def test_pytree_nodes_are_made_again_for_the_replay():
    class Cache:
        def __init__(self, items):
            self.items = items

    torch.utils._pytree.register_pytree_node(
        Cache, lambda cache: (list(cache.items), None), lambda items, _: Cache(list(items))
    )
    lengths = []

    def fn(x, cache):
        lengths.append(len(cache.items))
        cache.items.append(x.exp())
        return sum(cache.items).sin()

    def program(wrap):
        x = leaf(3)
        cache = Cache([x.sin()])
        wrap(fn)(x, cache).sum().backward()
        assert len(cache.items) == 2
        return x.grad

    try:
        assert_same(program, checkpointed)
    finally:
        torch.utils._pytree._deregister_pytree_node(Cache)
    assert lengths == [1, 1, 1]


def test_no_grad_and_inference_mode_are_plain_calls():
    runs = []

    def fn(x):
        runs.append(remat.is_recomputing())
        return x.sin()

    with torch.no_grad():
        assert not checkpointed(fn)(leaf(2)).requires_grad
    with torch.inference_mode():
        checkpointed(fn)(torch.ones(2))
    checkpointed(fn)(torch.ones(2))
    assert runs == [False] * 3


def test_is_recomputing_tells_the_phases_apart():
    phases = []

    def fn(x):
        phases.append(remat.is_recomputing())
        return x.sin()

    checkpointed(fn)(leaf(2)).sum().backward()
    assert phases == [False, True]
    assert not remat.is_recomputing()


def test_early_stop_ends_the_replay_after_the_last_saved_tensor():
    reached = []

    def fn(x):
        y = x.sin()
        reached.append("saved")
        z = y.exp().clone() + 1
        reached.append("end")
        return z

    for early_stop, expected in ((True, ["saved", "end", "saved"]), (False, ["saved", "end"] * 2)):
        reached.clear()
        remat.checkpoint(early_stop=early_stop)(fn)(leaf(2)).sum().backward()
        assert reached == expected


def test_a_function_without_ops_after_the_last_saved_tensor_returns_by_itself():
    left = []

    def fn(x):
        try:
            return x.sin().exp()
        except BaseException:
            left.append("stop")
            raise
        finally:
            left.append("end")

    x = leaf(2)
    checkpointed(fn)(x).sum().backward()
    assert left == ["end", "end"]
    assert_equal(x.sin().exp() * x.cos(), x.grad)


def test_finally_and_with_blocks_run_when_a_replay_stops_and_except_exception_does_not():
    log = []

    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, *rest):
            log.append(kind.__name__ if kind else None)

    def fn(x):
        with Manager():
            try:
                y = x.sin().exp()  # the last tensor that backward needs
                return y + 1
            except Exception:
                log.append("except")
                raise
            finally:
                x.sin().exp()  # may save again while the function is left
                log.append("finally")

    def program(wrap):
        x = leaf(2)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)
    assert log == ["finally", None] * 2 + ["finally", "StopReplay"]


def test_a_bare_except_that_catches_the_stop_is_stopped_again():
    caught = []

    def fn(x):
        y = x.sin()
        try:
            y = y.exp()
        except BaseException as error:
            caught.append(type(error).__name__)
        return y.sin().cos()

    def program(wrap):
        x = leaf(2)
        (a, b) = wrap(lambda x: (fn(x), x.sin()))(x)
        a.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_exceptions_of_the_forward_pass_and_leave_nothing_open():
    class Mine(Exception):
        pass

    def fn(x):
        x.sin()
        raise Mine("here")

    for _ in range(3):
        with pytest.raises(Mine, match="here"):
            checkpointed(fn)(leaf(2))
    test_is_recomputing_tells_the_phases_apart()


def test_exceptions_of_the_replay_keep_their_type_and_get_a_note():
    class Mine(Exception):
        pass

    fail = [False]

    def fn(x):
        y = x.sin()
        if fail[0]:
            raise Mine("again")
        return y.exp()

    x = leaf(2)
    y = checkpointed(fn)(x)
    fail[0] = True
    with pytest.raises(Mine, match="again") as caught:
        y.sum().backward()
    if sys.version_info >= (3, 11):
        assert "region 'block': raised when its function ran again" in caught.value.__notes__[0]
    fail[0] = False
    y.sum().backward()  # the graph was not consumed
    assert_equal(x.sin().exp() * x.cos(), x.grad)


def test_a_replay_that_differs_raises_replay_mismatch():
    flag = [True]

    def fn(x):
        return x.sin() if flag[0] else x.exp()

    y = checkpointed(fn)(leaf(2))
    flag[0] = False
    with pytest.raises(remat.ReplayMismatch, match="region 'block'.*aten::sin.*aten::exp") as caught:
        y.sum().backward()
    assert isinstance(caught.value, RuntimeError)
    assert "fn" in [frame.name for frame in caught.traceback]


def test_the_determinism_check_can_be_turned_off():
    flag = [True]
    y = remat.checkpoint(determinism_check="none")(lambda x: x.sin() if flag[0] else x.cos())(leaf(2))
    flag[0] = False
    y.sum().backward()


def test_saved_tensors_hooks_around_and_inside():
    def program(wrap):
        log = []

        def hooks(tag):
            return torch.autograd.graph.saved_tensors_hooks(
                lambda t: (log.append(tag), t.clone())[1], lambda t: t
            )

        def fn(x):
            y = x.sin()
            with hooks("inside"):
                y = y.exp()
            return y * x

        x = leaf(3)
        with hooks("around"):
            y = wrap(fn)(x)
        y.sum().backward()
        assert "inside" in log
        return x.grad

    assert_same(program, checkpointed)


def test_the_option_saved_tensors_hooks_gets_the_arguments():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return ("held", tensor.numpy().copy())

    def unpack(held):
        return torch.from_numpy(held[1])

    def program(wrap):
        x = leaf(3)
        z = x.exp()
        wrap(lambda z: z.sin())(z).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(saved_tensors_hooks=(pack, unpack)))
    assert len(packed) == 1 and not packed[0].requires_grad


def test_errors_of_hooks_pass_through_backward():
    def unpack(_):
        raise KeyError("lost")

    y = remat.checkpoint(saved_tensors_hooks=(lambda t: t, unpack))(torch.sin)(leaf(2).exp())
    with pytest.raises(KeyError, match="lost"):
        y.sum().backward()


def test_state_hooks_make_the_replay_see_the_state_of_the_forward():
    class Counter:
        value = 0

        def snapshot(self):
            return self.value

        def restore(self, state):
            self.value = state

    counter, used = Counter(), []

    def fn(x):
        counter.value += 1
        used.append(counter.value)
        return (x * counter.value).sin()

    x = leaf(2)
    region = remat.checkpoint(recompute_state_hooks=[counter])(fn)
    y, z = region(x), region(x)
    (y + z).sum().backward()
    assert used == [1, 2, 2, 1] and counter.value == 2


def test_named_generators_draw_the_same_numbers():
    def program(wrap):
        generator = torch.Generator().manual_seed(3)
        x = leaf(5)
        y = wrap(lambda x: (x * torch.rand(5, generator=generator)).sin())(x)
        y.sum().backward()
        return x.grad, torch.rand(2, generator=generator)

    def checkpoint_with_generator(fn):
        generator = fn.__closure__[0].cell_contents
        return remat.checkpoint(generators=[generator])(fn)

    assert_same(program, checkpoint_with_generator)


def test_context_variables_are_those_of_the_forward():
    variable, seen = contextvars.ContextVar("variable", default="unset"), []

    def fn(x):
        seen.append(variable.get())
        variable.set("inner")
        return x.sin().exp()

    variable.set("forward")
    y = contextvars.copy_context().run(lambda: checkpointed(fn)(leaf(2)))
    variable.set("backward")
    y.sum().backward()
    assert seen == ["forward", "forward"]
    assert variable.get() == "backward"


def test_the_default_device_is_that_of_the_forward():
    devices = []

    def fn(x):
        devices.append(torch.empty(1).device.type)
        return x.sin()

    x = leaf(2)
    with torch.device("meta"):
        y = remat.checkpoint(intercept=False)(fn)(x)
    y.sum().backward()
    assert devices == ["meta", "meta"]


def test_two_threads_on_one_graph():
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 16))
    x = leaf(8, 16)
    y = checkpointed(model)(x)
    expected = torch.autograd.grad(y.sum(), x, retain_graph=True)
    results = [None] * 2

    def work(i):
        for _ in range(20):
            results[i] = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert torch.equal(results[i][0], expected[0])

    run_threads([threading.Thread(target=work, args=(i,)) for i in range(2)])
    assert_equal(expected, results[0])
    assert_equal(expected, results[1])


def test_four_threads_with_graphs_of_their_own():
    def train(wrap, seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 16, generator=generator).requires_grad_()
        w = torch.randn(16, 16, generator=generator).requires_grad_()
        for _ in range(10):
            wrap(lambda x: Square.apply((x @ w).sin()).exp())(x).sum().backward()
        return x.grad, w.grad

    expected = [train(lambda fn: fn, seed) for seed in range(4)]
    results = [None] * 4

    def work(i):
        results[i] = train(checkpointed, i)

    run_threads([threading.Thread(target=work, args=(i,)) for i in range(4)])
    assert_equal(expected, results)


def test_a_thread_that_waits_for_a_replay_lets_go_of_the_gil():
    """Replays that draw take turns; the one that sleeps needs the GIL to go on."""
    waits = []

    def fn(x):
        if remat.is_recomputing():
            waits.append(1)
            time.sleep(0.05)
        return torch.dropout(x.sin(), 0.5, True).exp()

    first, second = (checkpointed(fn)(leaf(4)) for _ in range(2))
    # A hang holds the GIL, so that only a thread without Python can end it.
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        thread = threading.Thread(target=lambda: first.sum().backward())
        thread.start()
        while not waits:
            time.sleep(0.001)
        result = second.grad_fn._saved_result  # Python asks, so this replay begins with the GIL
        thread.join()
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert_equal(second, result)


def run_threads(threads):
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread hangs"


def test_checkpoint_sequential_is_bitwise_the_chain():
    def program(wrap):
        model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3)) for _ in range(5)])
        x = leaf(2, 6)
        wrap(model)(x).sum().backward()
        return grads_of(model, x)

    assert_same(program, remat.checkpoint_sequential(3))
    assert_same(program, remat.checkpoint_sequential(5, region_name="chain"))


def test_checkpoint_sequential_runs_all_but_the_last_segment_again():
    runs = []

    def layer(i):
        return lambda x: (runs.append(i), x.sin())[1]

    x = leaf(2)
    remat.checkpoint_sequential(2)([layer(i) for i in range(5)])(x).sum().backward()
    assert runs == [0, 1, 2, 3, 4, 0, 1]
    for segments in (0, 6):
        with pytest.raises(ValueError, match=f"segments: expected 1 to 5, .*got {segments}"):
            remat.checkpoint_sequential(segments)([layer(i) for i in range(5)])
