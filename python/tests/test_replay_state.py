# SPDX-License-Identifier: BSD-3-Clause

"""State that a replay must find as its forward found it: the user's state, generators, settings, numbers."""

import contextlib
import contextvars
import random

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same, generator_of, plain

import remat_meta as remat


def clones():
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor)


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
        generator = generator_of(3)
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


def test_numbers_that_indexing_makes_are_equal_in_the_replay():
    def fn(x):
        y = x.sin().clone()
        y[y > 0.1] = 0.5
        y[torch.tensor([0, 2])] = -1.0
        y[1, 2:] = 3
        return (y * x).exp()

    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda x: wrap(fn)(fn(x)))(x).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("replay", ("function", "tape"))
def test_backward_may_start_at_a_tensor_subclass(replay):
    class Named(torch.Tensor):
        pass

    def program(wrap):
        w = leaf(1)
        x = leaf(1).detach().as_subclass(Named).requires_grad_()
        wrap(lambda t: (t * w).sin().exp())(x).sum().backward()
        return w.grad, x.grad.as_subclass(torch.Tensor)

    assert_same(program, remat.checkpoint(replay=replay))


@pytest.mark.parametrize("dropout", (0.0, 0.5))
def test_attention_and_numbers_that_are_drawn_after_the_region(dropout):
    def program(wrap):
        x = leaf(1, 2, 8, 8)

        def attention(x):
            return torch.nn.functional.scaled_dot_product_attention(x.sin(), x, x, dropout_p=dropout)

        y = wrap(lambda x: torch.rrelu(attention(x), training=False))(x)
        (y * torch.rand(8)).sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_hooks_of_python_run_ops_on_the_bytes_that_a_region_inside_keeps():
    def program(wrap):
        x = leaf(4, 4)

        def inner(y):
            return y.copy_(y) * 2

        def outer(x):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                y = x.sin()
                z = wrap(inner)(y)
            buffer.copy_(z.detach())
            buffer[torch.tensor([0, 2])] = 0.5
            return y * z

        buffer = torch.zeros(4, 4)
        wrap(outer)(x).sum().backward()
        return x.grad, buffer

    assert_same(program, checkpointed)


def test_numbers_drawn_in_fork_rng_are_the_same():
    def fn(x):
        with torch.random.fork_rng(devices=[]):
            return torch.dropout(x, 0.5, True).sin()

    def program(wrap):
        x = leaf(40)
        y = wrap(fn)(x)
        torch.rand(3)
        y.sum().backward()
        return x.grad

    assert_same(program, checkpointed)


def test_what_an_in_place_op_returns_is_the_tensor_that_the_function_has():
    count = torch.zeros(())
    state = {"count": count}

    @remat.checkpoint()
    def block(x):
        y = x.sin()
        state["count"] = torch.ops.aten.add_.Scalar(state["count"], 1)
        return y.exp()

    block(leaf(3)).sum().backward()
    assert state["count"] is count and count.item() == 1


def test_the_state_of_a_hook_may_be_a_tuple():
    class PythonsGenerator:
        snapshot = staticmethod(random.getstate)
        restore = staticmethod(random.setstate)

    def program(wrap):
        random.seed(3)
        x = leaf(2)
        wrap(lambda x: (x.sin() * random.random()).exp())(x).sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(recompute_state_hooks=[PythonsGenerator()]))


@pytest.mark.parametrize("copying", (torch.autograd.graph.save_on_cpu, clones))
@pytest.mark.parametrize("kept", (False, True))
def test_hooks_that_copy_do_not_lift_the_rule_of_in_place_writes_for_a_region(kept, copying):
    def fn(x):
        h = x.sin()
        y = remat.native_op(lambda x: h.sin(), "sin", remat.CheckpointPolicy.SAVE)(x) if kept else h.sin()
        return y, h

    x = leaf(4, 4)
    with copying():
        y, h = remat.checkpoint(region_name="block")(fn)(x)
        h.mul_(0.5)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*region 'block'.*got it|region 'block', slot"):
        y.sum().backward()


ARGUMENTS = {
    "rows": lambda x: x[4:12],
    "a column": lambda x: x[:, 3],
    "every third column": lambda x: x[:, ::3],
    "transposed": lambda x: x.t(),
    "a part, transposed": lambda x: x[2:, 1:].t(),
    "expanded": lambda x: x[5].expand(7, 16),
    "windows": lambda x: x.unfold(1, 4, 2),
    "conjugated": lambda x: torch.complex(x, x)[3:].conj(),
    "one element": lambda x: x[7, 7],
    "none": lambda x: x[16:],
}


@pytest.mark.parametrize("nested", (False, True), ids=("flat", "nested"))
@pytest.mark.parametrize("hooks", ("contiguous", "clone", "save_on_cpu", "strided otherwise"))
@pytest.mark.parametrize("engine", ("function", "tape", "auto"))
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_that_hooks_bring_back_lies_as_it_did(argument, engine, hooks, nested):
    def otherwise(tensor):
        strided = torch.empty(*tensor.shape, 2, dtype=tensor.dtype)[..., 1]
        return strided.copy_(tensor.detach())

    pair = {
        "contiguous": lambda: torch.autograd.graph.saved_tensors_hooks(torch.Tensor.contiguous, lambda t: t.clone()),
        "clone": clones,
        "save_on_cpu": torch.autograd.graph.save_on_cpu,
        "strided otherwise": lambda: torch.autograd.graph.saved_tensors_hooks(otherwise, lambda t: t),
    }[hooks]

    def program(wrap):
        torch.manual_seed(0)
        x = leaf(16, 16)

        def fn(a):
            a = a.reshape(-1)[1:] if a.dim() == 0 or a.numel() == 0 else a
            part = a[1:] if a.dim() else a
            return (part * part.sum(-1, keepdim=True)).abs().exp() + part.flatten().sum().abs().sin()

        inner = wrap(fn)
        fn = wrap(lambda a: inner(a.view_as(a)).sin()) if nested else inner
        with pair() if wrap is not plain else contextlib.nullcontext():
            y = fn(ARGUMENTS[argument](x * 1.0))
        y.sum().backward()
        return y, x.grad

    assert_same(program, remat.checkpoint(replay=engine))


@pytest.mark.parametrize("engine", ("function", "tape", "auto"))
@pytest.mark.parametrize("write", (torch.Tensor.tanh_, torch.Tensor.exp_, torch.Tensor.relu_))
def test_an_empty_argument_is_written_and_backward_runs_twice(write, engine):
    x = leaf(4)
    y = remat.checkpoint(replay=engine)(lambda q: write(q))(x[:0] * 2)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros(4))
