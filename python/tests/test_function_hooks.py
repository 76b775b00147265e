# SPDX-License-Identifier: BSD-3-Clause

"""Hooks that a region's function sets, replaces and removes: each runs as often as without remat."""

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat


def test_hooks_that_the_function_sets_on_an_argument_run_once():
    def fn(x, y):
        for tensor in (x, y):
            tensor.register_hook(lambda grad: grad * 0.5)
        return x.sin().exp() * y

    def program(wrap):
        x, z = leaf(3), leaf(3)
        x.register_hook(lambda grad: grad + 1)
        wrap(fn)(x, z.cos()).sum().backward(retain_graph=True)
        grad = x.grad.clone()
        wrap(fn)(x, z).sum().backward()
        return grad, x.grad, z.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("nested", (False, True))
def test_hooks_that_the_function_sets_on_captured_tensors_run_once(nested):
    def program(wrap):
        w, x = leaf(3), leaf(3)
        h = leaf(3).cos()
        part = w[:1]
        buffer = torch.zeros(3)
        ends = []

        def fn(x):
            buffer.copy_(x.sin())
            for tensor in (w, h, part, buffer):
                tensor.register_hook(lambda grad: grad * 0.5)
            w.register_post_accumulate_grad_hook(lambda leaf: ends.append(leaf.grad.clone()))
            return x.sin().exp() * w * h * part * buffer

        w.register_hook(lambda grad: grad + 1)
        y = wrap(lambda x: wrap(fn)(x.tan()))(x) if nested else wrap(fn)(x)
        y.sum().backward(retain_graph=True)
        w.register_hook(lambda grad: grad + 3)
        y.sum().backward()
        return [w.grad, x.grad, torch.tensor(len(ends)), *ends]

    assert_same(program, checkpointed)


def test_a_function_may_replace_its_own_hook():
    def program(wrap):
        w, x, handles = leaf(1), leaf(1), []

        def fn(x):
            while handles:
                handles.pop().remove()
            handles.append(w.register_hook(lambda grad: grad * 2))
            return (x * w).exp()

        for _ in range(3):
            wrap(fn)(x).sum().backward()
        return w.grad, torch.tensor(len(w._backward_hooks))

    assert_same(program, checkpointed)


@pytest.mark.parametrize("kind", ("register_hook", "register_post_accumulate_grad_hook"))
@pytest.mark.parametrize("place", ("region", "nested", "gradient", "call"))
def test_a_handle_that_is_left_outside_removes_the_hook(kind, place):
    def program(wrap):
        w, x, holder, sizes = leaf(1), leaf(1), {}, []

        def hook(grad):
            return grad * 2 if kind == "register_hook" else None

        def fn(x):
            holder["first"] = getattr(w, kind)(hook)
            if place == "gradient":  # the function runs again in its own forward
                z = x.detach().requires_grad_()
                x = x + torch.autograd.grad(z.exp().sum(), z)[0]
            if place == "call":
                x = remat.native_op(lambda t: t.exp(), "exp", remat.CheckpointPolicy.SAVE)(x)
            holder["second"] = getattr(w, kind)(hook)
            return (x * w).exp()

        step = (lambda x: wrap(fn)(x.sin()).exp()) if place == "nested" else fn
        for _ in range(3):
            wrap(step)(x).sum().backward()
            holder.pop("second").remove()
            wrap(step)(x).sum().backward()
            holder.pop("first").remove()
            hooks = w._backward_hooks if kind == "register_hook" else w._post_accumulate_grad_hooks
            sizes.append(len(hooks))
        return w.grad, torch.tensor(sizes)

    assert_same(program, checkpointed)


def test_a_hook_that_the_function_replaces_keeps_its_place():
    def program(wrap):
        w, x, handles = leaf(1), leaf(1), []

        def fn(x):
            while handles:
                handles.pop().remove()
            handles.append(w.register_hook(lambda grad: grad + 1))
            return (x * w).exp()

        y = wrap(fn)(x)
        w.register_hook(lambda grad: grad * 10)
        y.sum().backward()
        return w.grad

    assert_same(program, checkpointed)


def test_a_replay_that_replaces_the_hook_of_a_later_call_raises():
    w, x, handles = leaf(1), leaf(1), []

    def fn(x, scale):
        while handles:
            handles.pop().remove()
        handles.append(w.register_hook(lambda grad: grad * scale))
        return (x * w).exp()

    y = checkpointed(fn)(x, 2) + checkpointed(fn)(x, 3)
    (last,) = w._backward_hooks.values()
    with pytest.raises(NotImplementedError, match="region 'block': .*removed another hook"):
        y.sum().backward()
    assert list(w._backward_hooks.values()) == [last]


def test_each_call_sets_its_hook_where_it_writes_the_tensor_and_takes_gradients_inside():
    def program(wrap):
        b, calls = leaf(1), []
        c = b * 2

        def fn(x, k):
            c.register_hook(lambda grad: calls.append(k) or grad + 10**k)
            h = x * c.tanh()
            c.add_(0.5)
            z = h.detach().requires_grad_()
            return h + torch.autograd.grad(z.exp().sum(), z)[0]

        y = leaf(1)
        for k in range(3):
            y = wrap(fn)(y, k)
        y.sum().backward()
        return b.grad, torch.tensor(calls)

    assert_same(program, checkpointed)


def test_a_hook_that_only_the_replay_sets_is_taken_back():
    def program(wrap):
        w, x, calls = leaf(1), leaf(1), []

        def fn(x):
            calls.append(0)
            if len(calls) == 2:
                w.register_hook(lambda grad: grad * 7)
            return (x * w).exp()

        wrap(fn)(x).sum().backward()
        return w.grad

    assert_same(program, checkpointed)


@pytest.mark.parametrize("kind", ("register_hook", "register_post_accumulate_grad_hook"))
def test_a_replay_that_takes_a_hook_away_raises_and_gives_it_back(kind):
    w, x, handles = leaf(1), leaf(1), []

    def fn(x):
        while handles:
            handles.pop().remove()
        y = (x * w).exp().sum()
        handles.append(getattr(w, kind)(lambda grad: None))  # a replay ends before this line
        return y

    y = checkpointed(fn)(x)
    with pytest.raises(NotImplementedError, match="region 'block': .*removed another hook"):
        y.backward()
    hooks = w._backward_hooks if kind == "register_hook" else w._post_accumulate_grad_hooks
    assert len(hooks) == 1
    handles.clear()
    hooks.clear()
    remat.checkpoint(early_stop=False)(fn)(x).backward()
    assert len(hooks) == len(handles) == 1


@pytest.mark.parametrize("nested", (False, True))
def test_hooks_and_retained_gradients_of_arguments_that_the_function_writes(nested):
    def program(wrap):
        w, grads, calls = leaf(2), [], []

        def fn(h, k):
            h.register_hook(lambda grad: calls.append(0) or grad * 3)
            h.mul_(2)
            k.retain_grad()
            removed = k.register_hook(lambda grad: grad * 5)
            y = h.exp() * k.sin()
            removed.remove()
            return y

        h, k = w * 1, w.cos()
        k.retain_grad()
        y = wrap(lambda h, k: wrap(fn)(h, k))(h, k) if nested else wrap(fn)(h, k)
        for _ in range(3):
            y.sum().backward(retain_graph=True)
            grads += [w.grad.clone(), k.grad.clone()]
        return [*grads, torch.tensor(len(calls))]

    assert_same(program, checkpointed)


def test_hooks_on_tensors_whose_memory_the_region_writes_run_once():
    def program(wrap):
        b, x = leaf(2), leaf(2)
        h, k = b * 1, b * 2
        v, u = h[:1], k[:1]

        def by_view(x):
            v.mul_(2)
            h.register_hook(lambda grad: grad * 3)
            return (h * x).exp()

        def by_base(x):
            k.mul_(2)
            y = (u * x[:1]).exp()
            u.register_hook(lambda grad: grad * 3)
            return y

        (wrap(by_view)(x).sum() + wrap(by_base)(x).sum()).backward()
        return b.grad, x.grad

    assert_same(program, checkpointed)


def test_hooks_on_tensors_that_only_save_calls_read_run_once():
    def program(wrap):
        w, x = leaf(2, 2), leaf(2, 2)
        v = w.t()

        def fn(x):
            for tensor in (v, w):
                tensor.register_hook(lambda grad: grad * 2)
            h = remat.native_op(lambda x: x * v, "times", remat.CheckpointPolicy.SAVE)(x.sin())
            return remat.native_op(lambda h: h @ w, "by", remat.CheckpointPolicy.SAVE)(h.exp())

        wrap(fn)(x).sum().backward()
        return w.grad, x.grad

    assert_same(program, checkpointed)


def test_a_hook_that_is_set_before_a_backward_inside_is_refused():
    def fn(x):
        w.register_hook(lambda grad: grad * 2)
        (w * w).sum().backward()
        return (x * w).sin()

    w, x = leaf(2), leaf(2)
    y = checkpointed(fn)(x)
    with pytest.raises(NotImplementedError, match=r"region 'block', slot \d+: .*passes no hook"):
        y.sum().backward()
    assert len(w._backward_hooks) == 1


def test_a_backward_inside_adds_once_to_what_retains_its_gradient():
    def program(wrap):
        grads = []
        for inputs in (None, 1):
            w, x = leaf(2), leaf(2)
            h, k = w.cos(), w.sin()
            h.retain_grad()
            k.retain_grad()

            def fn(x, k, h=h, inputs=inputs):
                (h * h * k).sum().backward(inputs=inputs and [h], retain_graph=True)
                return (x * h * h.grad.detach() * k).exp()

            fn = wrap(lambda x, k, fn=fn: fn(x, k))
            fn(x, k).sum().backward()
            grads += [h.grad, x.grad, w.grad]
        return grads

    assert_same(program, checkpointed)


def test_a_hook_that_shares_its_node_with_a_gradient_inside_may_be_given_none():
    def program(wrap):
        w = leaf(4, 4)
        first, second = torch._foreach_mul([w, w], 0.7)

        def fn(x):
            torch.autograd.grad((first.sin() * first).sum(), first, retain_graph=True)
            y = x.sin()
            x.register_hook(lambda grad: None if grad is None else grad * 0.9)
            return y

        wrap(fn)(second).sum().backward()
        return (w.grad,)

    assert_same(program, checkpointed)


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "node_creation_hook"), reason="torch has it since 2.14")
def test_hooks_on_new_nodes_are_told_of_those_in_regions():
    def names(wrap):
        seen = []
        x = leaf(3)
        with torch.autograd.graph.node_creation_hook(lambda node: seen.append(node.name())):
            y = wrap(lambda x: (x.sin() * x).exp())(x)
        y.sum().backward()
        return seen

    plain = names(lambda function: function)
    assert plain[-3:] == ["SinBackward0", "MulBackward0", "ExpBackward0"]
    assert names(checkpointed) == plain
