# SPDX-License-Identifier: BSD-3-Clause

"""The .grad of outside tensors, and hooks on their gradients, where a function sets them or runs a backward itself."""

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same

import remat_meta as remat


@pytest.mark.parametrize("set_to", ["none", "zeros", "own"])
@pytest.mark.parametrize("before", [False, True], ids=["empty before", "set before"])
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_a_grad_that_the_function_sets_stays_as_the_forward_left_it(set_to, before, nested):
    def program(wrap):
        def fn(x):
            y = (x * w).sin()
            w.grad = {"none": None, "zeros": torch.zeros_like(w), "own": y.detach().sum(0)}[set_to]
            return y.exp()  # saved, so the replay runs past the line above

        w, x = leaf(4), leaf(3, 4)
        if before:
            w.grad = torch.ones(4)
        y = wrap(lambda t: wrap(fn)(t.exp()).exp())(x) if nested else wrap(fn)(x)
        (x * w).exp().sum().backward()  # adds to .grad before the region is replayed
        y.sum().backward()
        return w.grad, x.grad

    assert_same(program, checkpointed)


def test_a_grad_of_an_argument_that_the_function_sets_stays_as_the_forward_left_it():
    def program(wrap):
        def fn(x):
            y = x.sin()
            x.grad = None
            return y.exp()

        x = leaf(3)
        x.grad = torch.ones(3)
        y = wrap(fn)(x)
        (x * 2).exp().sum().backward()
        y.sum().backward()
        return (x.grad,)

    assert_same(program, checkpointed)


def test_a_grad_that_was_emptied_after_the_region_stays_empty():
    def program(wrap):
        def fn(x):
            y = (x * w).sin()
            w.grad = torch.zeros_like(w)
            return y.exp()

        w, x = leaf(4), leaf(3, 4)
        y = wrap(fn)(x)
        w.grad = None
        y.sum().backward(inputs=[x])
        return x.grad, torch.tensor(w.grad is None)

    assert_same(program, checkpointed)


@pytest.mark.torch_warns  # torch warns that create_graph makes a cycle
@pytest.mark.parametrize("create", [False, True], ids=["plain", "create_graph"])
def test_what_retains_its_gradient_has_what_was_there_before(create):
    def program(wrap):
        w, x = leaf(2), leaf(2)
        h = w.cos()
        h.retain_grad()
        (h * 3).sum().backward(retain_graph=True)

        def fn(x):
            (h * h).sum().backward(retain_graph=True, create_graph=create)
            return (x * h * h.grad.detach()).exp()

        wrap(fn)(x).sum().backward()
        return h.grad, x.grad, w.grad

    assert_same(program, checkpointed)


@pytest.mark.torch_warns
@pytest.mark.parametrize("before", [False, True], ids=["empty before", "set before"])
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_a_backward_inside_with_create_graph_adds_to_what_was_there(before, nested):
    def program(wrap):
        w, x = leaf(2), leaf(2)
        if before:
            w.grad = torch.full((2,), 3.0)

        def fn(x):
            for _ in range(2):
                (w.sin() * w).sum().backward(create_graph=True)
            return (x * w.grad).exp()

        y = wrap(lambda t: wrap(fn)(t.sin()).sin())(x) if nested else wrap(fn)(x)
        y.sum().backward(inputs=[x])
        grads = w.grad.detach().clone(), x.grad
        w.grad = None
        return grads

    assert_same(program, checkpointed)


@pytest.mark.torch_warns
def test_backwards_inside_that_add_in_place_and_then_with_a_graph_are_refused():
    def fn(x):
        (w.sin() * w).sum().backward()
        (w.sin() * w).sum().backward(create_graph=True)
        return (x * w.grad).exp()

    w, x = leaf(2), leaf(2)
    w.grad = torch.ones(2)
    with pytest.raises(NotImplementedError, match=r"region 'block': .* all with create_graph or all without, got both"):
        checkpointed(fn)(x)
    w.grad = None


def test_a_grad_that_was_there_before_may_not_be_written():
    def fn(x):
        (h * h).sum().backward(retain_graph=True)
        return (x * h.grad.detach()).exp()

    w, x = leaf(2), leaf(2)
    h = w.cos()
    h.retain_grad()
    h.sum().backward(retain_graph=True)
    first = h.grad
    y = checkpointed(fn)(x)
    first.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*region 'block': expected the \.grad"):
        y.sum().backward()


@pytest.mark.parametrize("engine", ["grad", "backward"])
def test_who_retains_a_gradient_that_the_function_never_reads_gets_it_once(engine):
    def program(wrap):
        w = leaf(2)
        h = w.cos()
        h.retain_grad()
        k = h.exp()

        def fn(k):
            if engine == "grad":
                (g,) = torch.autograd.grad((k * k).sum(), w, retain_graph=True)
            else:
                (k * k).sum().backward(retain_graph=True)
                g = 1
            return k.sin() * g

        wrap(fn)(k).sum().backward()
        return h.grad, w.grad

    assert_same(program, checkpointed)


def test_a_captured_tensor_retains_what_a_gradient_inside_passes_once():
    def program(wrap):
        w, x = leaf(2), leaf(2)
        h = w.cos()
        h.retain_grad()

        def fn(x):
            (g,) = torch.autograd.grad((h * h).sum(), w, retain_graph=True)
            return x.sin() * g * h

        wrap(fn)(x).sum().backward()
        return h.grad, w.grad, x.grad

    assert_same(program, checkpointed)


def test_a_hook_after_accumulation_that_a_backward_inside_would_run_twice_is_refused():
    def fn(x):
        (w * w).sum().backward()
        return (x * w).sin()

    w, x, seen = leaf(2), leaf(2), []
    handle = w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    with pytest.raises(NotImplementedError, match=r"region 'block', node .*AccumulateGrad.* would run again"):
        checkpointed(fn)(x)
    handle.remove()
    assert not seen
    checkpointed(fn)(x).sum().backward()
    # In a SAVE call nothing runs again, and neither do hooks of a leaf that is not reached.
    w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    call = remat.native_op(lambda x: fn(x).detach() * x, "call", remat.CheckpointPolicy.SAVE)
    checkpointed(lambda x: call(x).exp())(x).sum().backward()
    assert len(seen) == 1


def test_hooks_after_accumulation_of_leaves_that_the_function_makes_run_with_it():
    def program(wrap):
        def twice(p):
            p.grad.mul_(2)

        def fn(x):
            fast = x.detach().clone().requires_grad_()
            fast.register_post_accumulate_grad_hook(twice)
            (fast.sin() * fast).sum().backward()
            return x * fast.grad

        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return (x.grad,)

    assert_same(program, checkpointed)


def set_after(fn, h, x, **options):
    y = remat.checkpoint(region_name="block", **options)(fn)(x)
    h.register_hook(lambda grad: grad * 2)
    with pytest.raises(remat.ReplayMismatch, match=r"backward 0 inside the function: expected to pass 0 hooks .*got 1"):
        y.sum().backward()


@pytest.mark.parametrize("check", ["none", "metadata"])
@pytest.mark.parametrize("is_leaf", [False, True], ids=["node", "leaf"])
@pytest.mark.parametrize("engine", ["grad", "backward", "backward to inputs"])
def test_a_hook_that_is_set_after_a_backward_inside_is_refused(check, is_leaf, engine):
    def fn(x):
        if engine == "grad":
            (g,) = torch.autograd.grad((h * h).sum(), h, retain_graph=True)
        else:
            fast = leaf(2)
            ends = {"inputs": [h]} if engine == "backward to inputs" else {}
            (h * h * fast).sum().backward(retain_graph=True, **ends)
            g = 1 if ends else fast.grad
        return x.sin() * g

    w, x = leaf(2), leaf(2)
    h = w if is_leaf else w.cos()
    set_after(fn, h, x, determinism_check=check)


def test_a_second_hook_and_one_that_the_function_sets_after_its_backward_are_refused():
    def fn(x):
        (g,) = torch.autograd.grad((w * w).sum(), w)
        w.register_hook(lambda grad: grad * 3)
        return x.sin() * g

    w, x = leaf(2), leaf(2)
    w.register_hook(lambda grad: grad * 2)
    y = checkpointed(fn)(x)
    with pytest.raises(RuntimeError, match=r"expected to pass 1 hooks on gradients as in the forward, got 2"):
        y.sum().backward()


def test_hooks_that_a_gradient_inside_does_not_pass_may_be_set():
    def program(wrap):
        w, x = leaf(2), leaf(2)
        h = w.cos()
        k = h.exp()

        def fn(x):
            (g,) = torch.autograd.grad((k * k).sum(), k, retain_graph=True)
            return x.sin() * g

        y = wrap(fn)(x)
        h.register_hook(lambda grad: grad * 2)
        w.register_hook(lambda grad: grad * 3)
        (y * h).sum().backward()
        return w.grad, x.grad

    assert_same(program, checkpointed)
