# SPDX-License-Identifier: BSD-3-Clause

"""Outside tensors that get other memory (`.data = ...`) between forward and backward."""

import pytest
import torch
from programs import leaf
from same import assert_same, plain

import remat_meta as remat

ENGINES = ("tape", "auto", "function")


def set_no_grad(p):
    with torch.no_grad():
        p.set_(torch.ones(4))


def set_data(p):
    p.data = torch.ones(4)


def set_from_vector(p):
    torch.nn.utils.vector_to_parameters(torch.ones(4), [p])


def set_empty(p):
    p.data = torch.empty(0)


@pytest.mark.parametrize("exchange", [set_no_grad, set_data, set_from_vector, set_empty])
@pytest.mark.parametrize("passed", (False, True))
@pytest.mark.parametrize("steps", (0, 2))  # the tape is trusted after 2 steps, not after 0
@pytest.mark.parametrize("engine", ("tape", "auto", "function", "cut"))
def test_memory_that_is_exchanged_before_backward_raises(engine, steps, passed, exchange):
    bias, weight, x = leaf(4), leaf(4), torch.randn(3, 4)
    options = {"replay": "tape", "cuts": remat.Cuts([2], groups=[])} if engine == "cut" else {"replay": engine}
    name = f"{engine} {steps} {passed} {exchange.__name__}"

    def fn(x, *passed):
        return ((x + (passed[0] if passed else bias)) * weight).tanh().exp()

    region = remat.checkpoint(region_name=name, **options)(fn)
    arguments = (x, bias) if passed else (x,)
    for _ in range(steps):
        region(*arguments).sum().backward()
    y = region(*arguments)
    exchange(bias)
    with pytest.raises(RuntimeError, match="got other memory|as in the forward, got|computes other values|as the forward"):
        y.sum().backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_a_buffer_that_is_exchanged_raises(engine):
    buffer, x = torch.ones(4), leaf(4)
    y = remat.checkpoint(replay=engine, region_name=f"buffer {engine}")(lambda x: (x * buffer).sum())(x)
    buffer.data = torch.full((4,), 5.0)
    with pytest.raises(RuntimeError, match="got other memory|as in the forward, got"):
        y.backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_which_hooks_have_a_copy_may_be_given_up(engine):
    def program(wrap):
        x, gradients = leaf(4), []
        for _ in range(3):
            buffer = torch.rand(4)
            kept = []

            def pack(tensor, kept=kept):
                kept.append(tensor.detach().clone())
                return len(kept) - 1

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda i, kept=kept: kept[i]):
                y = wrap(lambda x, buffer: (x * buffer).sum() * x.sin())(x, buffer)
            buffer.data = torch.empty(0)
            y.sum().backward()
            gradients.append(x.grad)
            x.grad = None
        return gradients

    assert_same(program, remat.checkpoint(replay=engine, region_name=f"taken {engine}"))


@pytest.mark.parametrize("policy", (remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD))
@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_a_parameter_of_a_kept_op_that_is_exchanged_raises(engine, policy):
    w, x = leaf(4), leaf(4)
    options = {"policy": remat.PolicyTable().op("aten::mul*", policy), "offload_store": remat.host_memory_store()}
    y = remat.checkpoint(replay=engine, region_name=f"kept {engine} {policy}", **options)(lambda x: (x * w).sum())(x)
    w.data = torch.full((4,), 5.0)
    with pytest.raises(RuntimeError, match="got other memory|as in the forward, got"):
        y.backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_parameter_without_elements_has_no_memory_to_exchange(engine):
    def program(wrap):
        empty, x = leaf(0, 4), leaf(3, 4)
        region = wrap(lambda x, empty: torch.cat([x.sin(), empty, captured.exp()]).exp())
        captured = leaf(0, 4)
        for _ in range(3):
            region(x, empty).sum().backward()
        return x.grad, empty.grad, captured.grad

    assert_same(program, remat.checkpoint(replay=engine, region_name=f"empty {engine}"))


def exchange_weight_and_back(x, w):
    whole, w.data = w.data, w.data.sign()
    y = x @ w
    w.data = whole
    return y


def exchange_weight(x, w):
    y = x @ w
    w.data = w.detach().sign()
    return y.sin()


def write_weight_and_back(x, w):
    whole = w.data.clone()
    w.data.sign_()
    y = x @ w
    w.data.copy_(whole)
    return y


def write_what_is_made(x, w):
    h = x.sin()
    y = h.cos() * w
    h.data.mul_(2)
    return y * h


def write_by_a_view(x, w):
    h = x.sin()
    y = h.cos() * w
    h.data.view(torch.int32)[1:3].zero_()
    return y


def write_after_a_view_was_saved(x, w):
    y = x @ w.t()
    w.data.clamp_(-0.1, 0.1)
    return y


def write_in_a_save_call(x, w):
    h = x.cos()
    y = h * h * w
    remat.native_op(lambda h: h.data.mul_(0.5), "m", remat.CheckpointPolicy.SAVE)(h)
    return y.exp()


def write_what_a_region_inside_was_given(x, w):
    h = x * w
    y = remat.checkpoint()(lambda h: h.exp() * h)(h)
    h.data.clamp_(-0.5, 0.5)
    return y


def write_what_is_forgotten(x, w):
    h = x.sin()
    y = h.cos() * w
    data = h.data
    del h
    data.mul_(2)
    return y


def exchange_what_is_forgotten(x, w):
    h = x.sin()
    y = h.cos() * w
    h.data = h.data * 2
    return y


def exchange_what_a_call_was_given(x, w):
    h = x.cos()
    y = remat.native_op(lambda h: h * h, "m", remat.CheckpointPolicy.SAVE)(h)
    h.data = h.data * 0.5
    return y.exp() * w


def exchange_what_a_call_has_made(x, w):
    h = remat.native_op(torch.exp, "m", remat.CheckpointPolicy.SAVE)(x)
    h.data = h.data * 0.5
    return h * w


def write_by_a_storage(x, w):
    h = x.sin()
    y = h.cos() * w
    torch.empty(0).set_(h.untyped_storage(), 0, (4, 4)).mul_(2)
    return y


def write_by_a_tensor_set_to_it(x, w):
    h = x.sin()
    other = torch.empty(0).set_(h.detach())
    y = h.cos() * w
    other.mul_(2)
    return y


class Saves(torch.autograd.Function):
    """Saves its argument, an intermediate, and its result."""

    @staticmethod
    def forward(ctx, x):
        middle = x.tanh()
        result = middle.sin()
        ctx.save_for_backward(x, middle, result)
        ctx.middle = middle
        return result

    @staticmethod
    def backward(ctx, grad):
        x, middle, result = ctx.saved_tensors
        return grad * result * middle.cos() * (1 - middle * middle) + 0 * x


def write_what_a_function_has_saved(x, w):
    h = Saves.apply(x * w)
    h.data.mul_(2)
    return h


def write_what_a_function_was_given(x, w):
    h = x * 2
    y = Saves.apply(h) * w
    h.data.mul_(2)
    return y


def write_what_a_function_keeps(x, w):
    h = Saves.apply(x * w)
    h.grad_fn.middle.data.mul_(2)
    return h


def exchange_what_a_function_was_given(x, w):
    h = x * 2
    y = Saves.apply(h) * w
    h.data = h.data * 2
    return y


def write_a_chunk(x, w):
    h = x.sin()
    y = h.cos() * w
    with torch.no_grad():
        h.unsafe_chunk(2)[1].mul_(2)
    return y


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "fn, words",
    (
        (exchange_weight_and_back, r"slot \d .*: expected a saved tensor to have its memory until the region ends"),
        (exchange_weight, r"slot \d .*: expected a saved tensor to have its memory until the region ends"),
        (write_weight_and_back, r"slot \d .*, op aten::copy_: expected in-place ops that autograd notices"),
        (write_what_is_made, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd notices"),
        (write_after_a_view_was_saved, r"slot \d .*, op aten::clamp_: expected in-place ops that autograd notices"),
        (write_in_a_save_call, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd notices"),
        (write_what_a_region_inside_was_given, r"slot \d .*, op aten::clamp_: expected in-place ops that autograd"),
        (write_what_is_forgotten, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd notices"),
        (exchange_what_is_forgotten, r"slot \d .*: expected a saved tensor to have its memory until the region ends"),
        (exchange_what_a_call_was_given, r"slot \d .*: expected a saved tensor to have its memory until the region ends"),
        (exchange_what_a_call_has_made, r"call 'm' \(SAVE\), tensor 'saved.0' .*: expected a saved tensor to have its"),
        (write_by_a_storage, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops|.*got op aten::set_"),
        (write_by_a_tensor_set_to_it, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops|.*got op aten::set_"),
        (write_what_a_function_has_saved, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd"),
        (write_what_a_function_was_given, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd"),
        (write_what_a_function_keeps, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd"),
        (exchange_what_a_function_was_given, r"slot \d .*: expected a saved tensor to have its memory until the region"),
        (write_a_chunk, r"slot \d .*, op aten::mul_.Tensor: expected in-place ops that autograd notices"),
        (write_by_a_view, r"slot \d .*, op aten::zero_: expected in-place ops that autograd notices"),
    ),
)
def test_what_was_saved_is_not_changed_by_way_of_data(fn, words, engine, nested):
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    region = remat.checkpoint(replay=engine, region_name="r")(fn)
    with pytest.raises(NotImplementedError, match=rf"\[checkpoint\] region .*(?:{words})"):
        remat.checkpoint(replay=engine)(lambda x: region(x, w))(x) if nested else region(x, w)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_nobody_has_saved_may_be_changed_by_way_of_data(engine):
    def program(wrap):
        x, w, seen = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True), torch.zeros(4)

        def fn(x):
            w.data.clamp_(-1, 1)
            h = x.sin()
            h.data.mul_(2)
            y = h @ w
            seen.data.add_(y.detach().sum(0))
            y.data.neg_()
            return y.exp()

        y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad, w.grad, w, seen

    assert_same(program, remat.checkpoint(replay=engine))


@pytest.mark.parametrize("inner", ENGINES)
@pytest.mark.parametrize("engine", ("auto", "function"))
def test_what_remat_holds_for_a_region_inside_may_be_written_as_autograd_counts(engine, inner):
    """`data` aliases the memory that the inner region's tape and SAVE call hold."""

    def program(wrap):
        x, bank = leaf(4), torch.randn(3, 4)
        data = bank.data

        def inside(x):
            row = bank[1]
            kept = remat.native_op(lambda x: x * 1.5, "m", remat.CheckpointPolicy.SAVE)(x)
            return (x.sin() + row).cos() + kept

        region = inside if wrap is plain else remat.checkpoint(replay=inner)(inside)

        def outer(x):
            y = region(x * 2)
            with torch.no_grad():
                bank.mul_(1.5)
                bank[0].copy_(y)
            return y.sin()

        y = (outer if wrap is plain else remat.checkpoint(replay=engine)(outer))(x)
        y.sum().backward()
        return x.grad, bank, data

    for _ in range(3):
        assert_same(program, remat.checkpoint())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_codebook_that_only_a_search_has_read_may_be_written(engine):
    def program(wrap):
        x, codes = torch.randn(8, 4, requires_grad=True), torch.randn(4, 5)

        def quantize(z):
            distances = z.pow(2).sum(1, keepdim=True) - 2 * z @ codes + codes.pow(2).sum(0, keepdim=True)
            found = torch.nn.functional.embedding(distances.argmin(1), codes.t())
            codes.data.mul_(0.9).add_(z.detach().sum(0)[:, None], alpha=0.1)
            return z + (found - z).detach()

        y = wrap(quantize)(x.sin())
        y.pow(2).sum().backward()
        return y, x.grad, codes

    assert_same(program, remat.checkpoint(replay=engine))


@pytest.mark.parametrize("policy", (None, remat.CheckpointPolicy.SAVE))
@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_may_be_masked_again_where_no_bit_changes(engine, policy):
    def program(wrap):
        x, w, mask = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True), torch.ones(4, 4).tril()

        def fn(h):
            for _ in range(3):
                w.data *= mask
                h = (h @ w).tanh()
            return h

        y = wrap(fn)(x)
        y.sum().backward()
        return y, x.grad, w.grad, w

    table = remat.PolicyTable().op("aten::tanh", policy) if policy else None
    assert_same(program, remat.checkpoint(replay=engine, policy=table))


def requires(tensor):
    return tensor.requires_grad_()


FROM_OUTSIDE = {  # tensors that plain autograd keeps by reference: how they are made, whether they are arguments
    "a captured tensor": (lambda: torch.ones(4, 4), False),
    "a captured result": (lambda: requires(torch.ones(4, 4)) * 1, False),
    "a captured weight": (lambda: requires(torch.ones(4, 4)), False),
    "an argument": (lambda: torch.ones(4, 4), True),
    "an argument that is a result": (lambda: requires(torch.ones(4, 4)) * 1, True),
    "an argument that is a weight": (lambda: requires(torch.ones(4, 4)), True),
}


def exchange_all(t):
    t.data = torch.full((4, 4), 5.0)


def exchange_layout(t):
    t.data = t.data.t()


def exchange_there_and_back(t):
    t.data = t.data.double()
    t.data = t.data.float()


@pytest.mark.parametrize("exchange", [exchange_all, exchange_layout, exchange_there_and_back])
@pytest.mark.parametrize("policy", ["none", "save", "offload"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", FROM_OUTSIDE)
def test_what_autograd_would_look_at_again_is_not_exchanged(what, engine, policy, exchange):
    """Exchanged through `data`: for other memory, another layout, or a copy of the old values."""
    make, passed = FROM_OUTSIDE[what]
    policies = {"save": remat.CheckpointPolicy.SAVE, "offload": remat.CheckpointPolicy.OFFLOAD}
    table = remat.PolicyTable().op("*", policies[policy]) if policy in policies else None
    options = {"policy": table, "offload_store": remat.host_memory_store()}
    x, t = leaf(4, 4), make()
    name = f"{what} {engine} {policy} {exchange.__name__}"
    region = remat.checkpoint(replay=engine, region_name=name, **options)(lambda x, *t_: x * (t_[0] if t_ else t))
    for _ in range(2):
        y = region(x, t) if passed else region(x)
    exchange(t)
    with pytest.raises(RuntimeError, match="got other memory|as in the forward, got|without a new version, through data"):
        y.sum().backward()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", [None, ["*"]], ids=["none", "all"])
def test_what_was_exchanged_and_has_its_memory_again_raises(policy, engine):
    """Plain code gets the right gradient. remat raises: it knows that memory was exchanged, not that the old memory came back."""
    x, w, b, t = leaf(4, 4), leaf(4, 4), torch.ones(4, 4), torch.randn(4, 4)
    wrap = remat.checkpoint(replay=engine, policy=policy, region_name=f"again {engine} {policy}")
    for tensor in (w, b, t):
        y = wrap(lambda x, t: ((x @ w) * b * t).sin())(x, t)
        whole, tensor.data = tensor.data, torch.empty(0)
        tensor.data = whole
        with pytest.raises(RuntimeError, match="got other memory"):
            y.sum().backward()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", [None, ["*"]], ids=["none", "all"])
def test_memory_may_be_exchanged_and_given_back_between_steps(policy, engine):
    """A program may do this to evaluate with averaged weights."""

    def program(wrap):
        x, w = leaf(4, 4), leaf(4, 4)
        region = wrap(lambda x: (x @ w).sin())
        for _ in range(4):
            region(x).sum().backward()
            whole, w.data = w.data, w.data * 0.5
            seen = (x @ w).detach()
            w.data = whole
        return x.grad, w.grad, seen

    assert_same(program, remat.checkpoint(replay=engine, policy=policy, region_name=f"between {engine} {policy}"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", ["none", "all", "some", "offload"])
def test_a_result_that_was_given_other_memory_raises(policy, engine):
    x = leaf(4)
    offload = remat.PolicyTable().op("*", remat.CheckpointPolicy.OFFLOAD)
    table = {"none": None, "all": ["*"], "some": ["aten::exp"], "offload": offload}[policy]
    options = {"policy": table, "offload_store": remat.host_memory_store()}

    def fn(x):
        h = x.exp()
        return h, h.sin()

    h, y = remat.checkpoint(replay=engine, region_name=f"result {engine} {policy}", **options)(fn)(x)
    h.data = torch.full((4,), 5.0)
    with pytest.raises(RuntimeError, match="got other memory"):
        y.sum().backward()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("policy", [None, ["*"]], ids=["none", "all"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_leaf_that_is_frozen_or_unfrozen_before_a_backward_with_create_graph_raises(engine, policy, passed, frozen):
    x, c = leaf(4), torch.rand(4, requires_grad=frozen)
    region = remat.checkpoint(replay=engine, policy=policy, region_name=f"graph {engine} {policy} {passed} {frozen}")(
        lambda x, *c_: (x * (c_[0] if c_ else c)).sin()
    )
    y = region(x, c) if passed else region(x)
    c.requires_grad_(not frozen)
    with pytest.raises(RuntimeError, match="got one that has been frozen or unfrozen since|requires_grad differs"):
        torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("policy", [None, ["*"]], ids=["none", "all"])
@pytest.mark.parametrize("engine", ENGINES)
def test_leaves_that_are_frozen_or_unfrozen_between_forward_and_backward_are_right(engine, policy, passed):
    """Two models that are trained against each other are frozen in turn."""

    def program(wrap):
        x, w, c = leaf(4), leaf(4), torch.rand(4)

        def fn(x, *given):
            first, second = given or (w, c)
            return (x * first).sin() * second.exp() * second

        for _ in range(3):
            y = wrap(fn)(x, w, c) if passed else wrap(fn)(x)
            w.requires_grad_(False)
            c.requires_grad_(True)
            y.sum().backward()
            w.requires_grad_(True)
            c.requires_grad_(False)
        return x.grad, w.grad, c.grad

    assert_same(program, remat.checkpoint(replay=engine, policy=policy, region_name=f"frozen {engine} {policy} {passed}"))


@pytest.mark.parametrize("engine", [*ENGINES, "inside"])
def test_a_gradient_that_is_asked_for_later_or_in_the_function_changes_nothing(engine):
    """"inside": the function itself calls torch.autograd.grad(create_graph=True)."""

    def program(wrap):
        x, c, e = leaf(4), torch.rand(4), torch.rand(4)

        def fn(x, e, c):
            e.requires_grad_()
            y = (e * x).sin()
            if engine == "inside":
                (y,) = torch.autograd.grad(y.sum(), e, create_graph=True)
            return y * x * c

        y = wrap(fn)(x, e, c)
        c.requires_grad_()
        y.sum().backward()
        return x.grad, c.grad

    replay = "function" if engine == "inside" else engine
    assert_same(program, remat.checkpoint(replay=replay, region_name=f"later {engine}"))


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("rows", [4, 300])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("policy", [None, ["aten::sin"]], ids=["none", "some"])
def test_a_part_of_an_inference_tensor_that_is_written_raises(policy, engine, rows, passed):
    """An inference tensor has no version. Here it stands for a cache that was filled in evaluation."""
    w, x = leaf(4, 4), torch.randn(4, 4)
    with torch.inference_mode():
        cache = torch.ones(rows, 4)
    region = remat.checkpoint(replay=engine, policy=policy, region_name=f"cache {engine} {policy} {rows} {passed}")(
        lambda x, *c_: (x @ w).sin() * ((c_[0] if c_ else cache).cumsum(0)[-4:] * 2)
    )
    for step in range(4):  # the tape is trusted after the first ones
        y = region(x, cache) if passed else region(x)
        if step == 3:
            with torch.inference_mode():
                cache[1] = torch.arange(4.0)
            with pytest.raises(RuntimeError, match="got other bytes|got others from its tape"):
                y.sum().backward()
        else:
            y.sum().backward()


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_inference_tensor_that_gets_other_memory_raises(engine, passed):
    x = leaf(4, 4)
    with torch.inference_mode():
        cache = torch.rand(4, 4)
    region = remat.checkpoint(replay=engine)
    y = region(lambda x, c: (x.sin() + c).exp())(x, cache) if passed else region(lambda x: (x.sin() + cache).exp())(x)
    cache.data = torch.ones(4, 4)
    with pytest.raises(RuntimeError, match="got other memory|got others from its tape|reads another tensor"):
        y.sum().backward()


def test_a_weight_that_the_function_exchanges_and_gives_back_is_right_in_each_step():
    """The function exchanges a weight in each of many steps, as quantization-aware training does."""

    def program(wrap):
        x, w = leaf(3, 4), leaf(4, 4)

        def fn(x):
            whole, w.data = w.data, (w.data * 4).round() / 4
            y = torch.nn.functional.linear(x, w).tanh()
            w.data = whole
            return y

        region, seen = wrap(fn), []
        for _ in range(40):
            y, z = region(x), region(x * 2)
            (y.sum() + z.sum()).backward()
            seen += [w.grad.clone(), w.detach().clone()]
        return x.grad, *seen

    assert_same(program, remat.checkpoint(region_name="quantized"))


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_that_give_weights_other_memory_are_right(engine):
    def program(wrap):
        x, w = leaf(3, 4), leaf(4, 4)
        region = wrap(lambda x: (x @ w).tanh())
        for _ in range(40):
            region(x).sum().backward()
            w.data = w.data - 0.1 * w.grad
            w.grad = None
        return x.grad, w

    assert_same(program, remat.checkpoint(replay=engine, region_name=f"steps {engine}"))


VIEWS = {
    "part": lambda base: base[1:3],
    "of a complex tensor": lambda base: torch.view_as_complex(base.view(4, 2, 2)).real,
    "whole": lambda base: base.t(),
}


@pytest.mark.parametrize("gradient", (False, True))
@pytest.mark.parametrize("moved", ("view", "base"))
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_view_that_lies_elsewhere_than_its_base_may_be_written(engine, view, moved, gradient):
    def program(wrap):
        x, base = leaf(4, 4), torch.rand(4, 4)
        part = VIEWS[view](base)
        if moved == "view":
            part.data = torch.rand(part.shape)
        else:
            base.data = torch.rand(4, 4)

        def fn(x):
            y = (part + x.sum()).sin().sum()
            part.mul_(x.sum() if gradient else 0.5)
            return (x * part.sum() * y).sin()

        wrap(fn)(x).sum().backward()
        return x.grad, part.detach().clone(), base.detach().clone()

    assert_same(program, remat.checkpoint(replay=engine, region_name=f"elsewhere {engine} {view} {moved} {gradient}"))
