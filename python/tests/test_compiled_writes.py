# SPDX-License-Identifier: BSD-3-Clause

"""Memory that compiled functions with regions read and write: refused, or correct."""

import pytest
import torch
from compiled_programs import SIZE, chain, compiled, run
from same import assert_equal
from torch import nn

import remat_meta as remat
from remat_meta import CheckpointPolicy

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]
SAVE = CheckpointPolicy.SAVE


def leaky(b, x, w):
    nn.functional.leaky_relu(b, -0.3, True)
    return (x @ w * b).sin()


def shifted(b, x, w):
    b *= 2
    return (x @ w * b).sin()


WRITES = {
    "inplace by its place": lambda x, w, b: leaky(b.neg_(), x, w),
    "by an operator": lambda x, w, b: shifted(b, x, w),
    "of a list": lambda x, w, b: (torch._foreach_add_([b], 1.0), (x @ w * b).sin())[1],
    "statistics": lambda x, w, b: nn.functional.batch_norm(x @ w, b[0], b[1], training=True) * b[0].mean(),
    "after an op has made others of it": lambda x, w, b: ((x @ w + b.exp()).sin(), b.add_(1))[0],
    "in place": lambda x, w, b: (b.add_(x.detach()), (x @ w * b).sin())[1],
    "of a part": lambda x, w, b: (b[0].mul_(2), (x @ w * b).sin())[1],
    "by an item": lambda x, w, b: (b.__setitem__(0, 2.0), (x @ w * b).sin())[1],
    "as out": lambda x, w, b: (torch.mul(x.detach(), 2, out=b), (x @ w * b).sin())[1],
    "after a read": lambda x, w, b: ((x - b).exp(), b.mul_(0.9).add_(x.detach()))[0],
}


@pytest.mark.parametrize("name", WRITES)
def test_memory_from_outside_that_a_region_writes_and_reads_is_refused(name):
    def step(wrap):
        b = torch.ones(SIZE, SIZE)
        fn = wrap(lambda x, w: WRITES[name](x, w, b))
        x, w = torch.ones(SIZE, SIZE).requires_grad_(), torch.ones(SIZE, SIZE).requires_grad_()
        fn(x, w).sum().backward()
        return x.grad, w.grad, b

    expected = step(lambda fn: fn)
    assert_equal(expected, step(lambda fn: compiled(remat.checkpoint()(fn), "eager")))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="expected memory from outside that is not both read and written"):
        step(lambda fn: compiled(remat.checkpoint()(fn)))


def around(program):
    """Runs a step with `program(wrap, x, w, b)`; returns gradients and b."""

    def step(wrap, compile):
        b = torch.full((SIZE, SIZE), 0.5)
        x, w = (torch.full((SIZE, SIZE), 0.1).requires_grad_() for _ in range(2))
        compile(lambda x, w: program(wrap, x, w, b))(x, w).sum().backward()
        return x.grad, w.grad, b

    return step


def reads_then(wrap, x, w, b):
    y = wrap(lambda x: (x @ w + b).sin())(x)
    b.copy_(y.detach())
    return y


RUN_AGAIN = remat.checkpoint(policy=remat.PolicyTable().call("p", CheckpointPolicy.RECOMPUTE))
ACROSS = {
    "written after the region": reads_then,
    "read after the region": lambda wrap, x, w, b: (wrap(lambda x: (b.add_(x.detach()), x.exp())[1])(x) @ w * b).sin(),
    "written by a function that does not say so": lambda wrap, x, w, b: wrap(lambda x: (x @ w + b).sin())(x)
    * nn.functional.embedding(torch.arange(SIZE), b, max_norm=0.1),
    "in a call that a rule says to run again": lambda wrap, x, w, b: (
        RUN_AGAIN(
            lambda x: remat.native_op(lambda x: (x @ w + b).sin(), "p", SAVE)(x).exp()
        )(x),
        b.mul_(0.5),
    )[0],
    "read by one, written by another": lambda wrap, x, w, b: wrap(lambda y: (b.add_(y.detach()), y.exp())[1])(
        wrap(lambda x: (x @ w * (b + 1)).sin())(x)
    ),
}


@pytest.mark.parametrize("name", ACROSS)
def test_memory_that_is_written_outside_of_the_region_that_reads_it_is_refused(name):
    with pytest.raises(Exception, match="expected memory from outside that is not both read and written"):
        around(ACROSS[name])(remat.checkpoint(), compiled)


RIGHT = {
    "made in the graph": lambda wrap, x, w, b: wrap(lambda y: (nn.functional.relu(y, inplace=True) @ w).sin())(x * 2),
    "captured, made in the graph": lambda wrap, x, w, b: (
        lambda c: wrap(lambda x: (c.mul_(x.detach()), (x @ c).sin())[1])(x)
    )(b + 1),
    "written before": lambda wrap, x, w, b: (b.add_(1), wrap(lambda x: (x @ w * b).sin())(x))[1],
    "both in a call": lambda wrap, x, w, b: wrap(
        lambda x: (named if wrap is plain else remat.native_op)(
            lambda x: (b.add_(1), (x @ w * b).sin())[1], "p", SAVE
        )(x).exp()
    )(x),
    "read by the next one": lambda wrap, x, w, b: wrap(lambda y: (y @ w * b).sin())(
        wrap(lambda x: (b.add_(x.detach()), x.exp())[1])(x)
    ),
}


def plain(fn):
    return fn


def named(fn, name, policy):
    return fn


@pytest.mark.parametrize("name", RIGHT)
def test_writes_that_a_compiler_knows_how_to_do_are_right(name):
    expected = around(RIGHT[name])(plain, plain)
    assert_equal(expected, around(RIGHT[name])(remat.checkpoint(), compiled))


def test_a_cache_is_written_and_read_without_gradients():
    def step(wrap):
        cache, x = torch.zeros(4, SIZE), torch.ones(SIZE)
        fn = wrap(lambda x, i: (cache[i].copy_(x), (cache @ x).sin())[1])
        with torch.no_grad():
            return *(fn(x * i, i) for i in range(3)), cache

    assert_equal(step(plain), step(lambda fn: compiled(remat.checkpoint()(fn))))


def test_an_exception_that_is_kept_leaves_nothing_open():
    def policy(context, op, *args, **kwargs):
        raise KeyError("mine")

    with pytest.raises(Exception, match="mine") as kept:
        run(compiled(remat.checkpoint(policy=policy)(chain)))
    assert_equal(run(chain), run(chain))
    assert kept.value
    torch.ones(2).add(1)
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_statistics_that_a_region_only_writes_are_written_once():
    def step(wrap):
        norm, mean = nn.BatchNorm1d(SIZE), torch.zeros(SIZE)

        def fn(x):
            y = norm(x).sin()
            mean.mul_(0.9).add_(y.detach().mean(0))
            return y.exp()

        x = torch.ones(4, SIZE).requires_grad_()
        wrap(fn)(x).sum().backward()
        return x.grad, mean, *norm.buffers()

    assert_equal(step(compiled), step(lambda fn: compiled(remat.checkpoint()(fn))))
