# SPDX-License-Identifier: BSD-3-Clause

"""Phases, the end of a replay, its hooks and its errors."""

import sys

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_equal, assert_same, plain

import remat_meta as remat


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
                x.sin().exp()  # may save again while an exception leaves the function
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
        (a, _) = wrap(lambda x: (fn(x), x.sin()))(x)
        a.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["finally", "except", "before"])
def test_interrupts_after_the_stop_reach_the_caller(error, place):
    def fn(x):
        again = remat.is_recomputing()
        if again and place == "before":
            raise error("mine")
        try:
            y = x.sin().exp()
            return y + 1
        except BaseException:
            if place == "except":
                raise error("mine") from None
            raise
        finally:
            if again and place == "finally":
                raise error("mine")

    x = leaf(2)
    y = checkpointed(fn)(x)
    with pytest.raises(error, match="mine"):
        y.sum().backward()
    y = checkpointed(torch.sin)(x)
    y.sum().backward()
    assert_equal(x.cos(), x.grad)


def test_ordinary_exceptions_after_the_stop_count_as_the_stop():
    raised = []

    def fn(x):
        try:
            y = x.sin().exp()
            return y + 1
        finally:
            if remat.is_recomputing():
                raised.append(True)
                raise KeyError("of the cleanup")

    x = leaf(2)
    checkpointed(fn)(x).sum().backward()
    assert raised
    assert_equal(x.sin().exp() * x.cos(), x.grad)


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
    y.sum().backward()  # the graph was not freed
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
    factor = [1.0]
    y = remat.checkpoint(determinism_check="none")(lambda x: (x * factor[0]).sin())(leaf(2))
    factor[0] = 2.0
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
        assert ("inside" in log) == (wrap is plain)  # bare code of a region runs again
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


def test_a_tensor_that_its_op_fills_after_saving_it_is_filled_in_the_replay_too():
    for options in ({}, {"intercept": False}, {"policy": "save_matmuls"}, {"determinism_check": "none"}):

        def program(wrap):
            torch.manual_seed(1)
            junk = [torch.full((40, 4), 3.0) for _ in range(50)]
            del junk
            x = leaf(40, 4)
            wrap(lambda x: torch.nn.functional.rrelu(x, training=True) + 1)(x).sum().backward()
            return x.grad

        assert_same(program, remat.checkpoint(**options))


@pytest.mark.parametrize("replay", ["function", "auto"])
@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.torch_warns
def test_a_backward_inside_a_region_adds_to_leaves_once(replay, early_stop):
    def program(wrap):
        w, x = leaf(4), leaf(4)

        def fn(x):
            (x.detach() * w).sin().sum().backward()
            (x * w).exp().sum().backward(inputs=[w], retain_graph=True)
            return x.exp() * w

        for _ in range(2):
            wrap(fn)(x.sin()).sum().backward()
        return w.grad, x.grad

    assert_same(program, remat.checkpoint(replay=replay, early_stop=early_stop))


def test_a_backward_inside_a_region_may_pass_no_save_call():
    def fn(x):
        y = remat.region(torch.sin, "sin", recompute=False)(x)
        (grad,) = torch.autograd.grad((y * x).sum(), x)
        return grad * x.exp()

    with pytest.raises(NotImplementedError, match="expected a backward inside the region's function that passes no SAVE"):
        checkpointed(fn)(leaf(4).exp())

    def forces(x):
        energy = (x @ x.t()).tanh().sum() + x.pow(4).sum()
        (force,) = torch.autograd.grad(energy, x)
        return force * x.exp()

    with pytest.raises(NotImplementedError, match="passes no SAVE call"):
        remat.checkpoint(policy="save_matmuls")(forces)(leaf(4, 4))

    def program(wrap):
        x = leaf(4, 4)
        wrap(forces)(x.exp()).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_a_tape_refuses_a_gradient_inside():
    out = leaf(4)

    def fn(x):
        (grad,) = torch.autograd.grad((out.sin() * out).sum(), out)
        return grad * x.exp()

    def program(wrap):
        x = leaf(4)
        wrap(fn)(x).sum().backward()
        return x.grad

    with pytest.warns(UserWarning, match="no tape can be written of it: a backward in the function"):
        assert_same(program, remat.checkpoint(replay="auto", region_name="inner gradient"))
    with pytest.raises(NotImplementedError, match="a backward in the function"):
        program(remat.checkpoint(replay="tape"))


def test_the_engine_of_torch_is_the_same_but_for_regions():
    checkpointed(torch.sin)(leaf(2)).sum().backward()
    engine = torch.autograd.Variable._execution_engine
    assert isinstance(engine, torch._C._ImperativeEngine)
    called = []
    x = leaf(2)
    x.register_hook(lambda grad: engine.queue_callback(lambda: called.append(0)))
    x.exp().sum().backward()
    assert called == [0]


def test_a_module_that_occurs_twice_in_a_chain_runs_twice():
    act = torch.nn.Tanh()
    chain = torch.nn.Sequential(torch.nn.Linear(4, 4), act, torch.nn.Linear(4, 4), act)
    x = leaf(2, 4)
    for segments in (1, 2, 4):
        assert torch.equal(remat.checkpoint_sequential(segments)(chain)(x), chain(x))


class Noted(torch.autograd.Function):
    """Notes the address of its saved tensor, in forward and backward."""

    places = []

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        Noted.places.append(x.data_ptr() % 64)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        Noted.places.append(ctx.saved_tensors[0].data_ptr() % 64)
        return 2 * ctx.saved_tensors[0] * grad


class Clones(remat.OffloadStore):
    class Ticket:
        def __init__(self, tensor):
            self.tensor = tensor

        def get(self):
            return self.tensor.clone()

    def put(self, tensor):
        return self.Ticket(tensor.clone())


def copies(tensor):
    return tensor.clone()


# Ways to bring tensors back as copies.
BRINGERS = {
    "hooks of the region": lambda fn: remat.checkpoint(saved_tensors_hooks=(copies, copies))(fn),
    "a store": lambda fn: remat.checkpoint(offload_store=Clones())(remat.native_op(fn, "call", remat.CheckpointPolicy.OFFLOAD)),
    "the store in host memory": lambda fn: remat.checkpoint(offload_store=remat.host_memory_store())(
        remat.native_op(fn, "call", remat.CheckpointPolicy.OFFLOAD)
    ),
}


@pytest.mark.parametrize("bring", BRINGERS)
@pytest.mark.parametrize("begin", [0, 3, 16])
@pytest.mark.parametrize("as_argument", [False, True])
def test_what_comes_back_begins_where_it_began_between_two_multiples_of_64_bytes(bring, begin, as_argument):
    """Kernels may sum in another order at another alignment."""
    x = torch.randn(64, requires_grad=True)
    Noted.places.clear()

    def fn(part):
        return Noted.apply(part if as_argument else part.sin()[begin : begin + 24]).exp()

    BRINGERS[bring](fn)(x.sin()[begin : begin + 24] if as_argument else x.sin()).sum().backward()
    assert set(Noted.places) == {begin * 4 % 64} and len(Noted.places) >= 2
