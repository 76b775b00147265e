# SPDX-License-Identifier: BSD-3-Clause

"""A replay that would compute other values raises, or gets the forward's values."""

import contextlib
import gc
import io
import pickle
import random

import numpy as np
import pytest
import torch
from fuzz.kinds import Scaled
from programs import leaf
from same import DEVICE, assert_equal, assert_same, default_generator, generator_of
from torch.utils._python_dispatch import TorchDispatchMode

import remat_meta as remat
from remat_meta._C import live_region_count

SAVE = remat.CheckpointPolicy.SAVE
region = remat.checkpoint(region_name="block")


def stored(n):
    with io.BytesIO() as file:
        torch.save(torch.full((3,), float(n)), file)
        return file.getvalue()


STORED = [stored(n) for n in range(4)]
PICKLED = [pickle.dumps(torch.full((3,), float(n))) for n in range(4)]
STORAGES = [torch.full((3,), float(n)).untyped_storage() for n in range(4)]


# Numbers from the host
COUNTED = {
    "a number": float,
    "an int": int,
    "full": lambda n: torch.full((3,), float(n)),
    "full_like": lambda n: torch.full_like(torch.ones(3), float(n)),
    "new_full": lambda n: torch.ones(3).new_full((3,), float(n)),
    "scalar_tensor": lambda n: torch.scalar_tensor(float(n)),
    "arange": lambda n: torch.arange(float(n), n + 3.0),
    "linspace": lambda n: torch.linspace(0, float(n), 3),
    "tensor of a number": lambda n: torch.tensor(float(n)),
    "tensor of a list": lambda n: torch.tensor([1.0, float(n), 2.0]),
    "tensor of an array": lambda n: torch.tensor(np.full(3, n, dtype=np.float32)),
    "as_tensor": lambda n: torch.as_tensor(np.full(3, n, dtype=np.float32)),
    "from_numpy": lambda n: torch.from_numpy(np.full(3, n, dtype=np.float32)),
    "from_numpy, cloned": lambda n: torch.from_numpy(np.full(3, n, dtype=np.float32)).clone(),
    "frombuffer": lambda n: torch.frombuffer(bytearray(np.full(3, n, dtype=np.float32)), dtype=torch.float32),
    "load": lambda n: torch.load(io.BytesIO(STORED[n])),
    "pickle": lambda n: pickle.loads(PICKLED[n]),
    "a storage": lambda n: torch.empty(0).set_(STORAGES[n]),
    "a storage, cloned": lambda n: torch.empty(0).set_(STORAGES[n].clone()),
    "mask": lambda n: torch.zeros(3).masked_fill(torch.tensor([n % 2 == 0, True, False]), 2.0),
}


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_a_number_that_changes_raises(make):
    calls = []

    def fn(x):
        calls.append(0)
        return (x.sin() * make(len(calls))).exp()

    y = region(fn)(leaf(3))
    with pytest.raises(remat.ReplayMismatch, match=r"\[replay\] region 'block', slot \d+, op \d+: expected"):
        y.sum().backward()


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_a_number_that_stays_does_not(make):
    def program(wrap):
        x = leaf(3)
        for _ in range(3):
            wrap(lambda x: wrap(lambda x: (x.sin() * make(2)).exp())(x * make(3)))(x).sum().backward()
        return x.grad

    assert_same(program, region)


def multiplied(x, scale):
    return x * scale


READERS = {  # readers of values that no other op of the region reads
    "custom function": lambda: Scaled.apply,
    "custom function, through a view": lambda: lambda x, scale: Scaled.apply(x, scale.view(3, 1).view(3)),
    "a region inside": lambda: region(multiplied),
    "a region inside with a custom function": lambda: region(Scaled.apply),
    "a SAVE call": lambda: remat.native_op(multiplied, "call", SAVE),
    "an OFFLOAD call": lambda: remat.native_op(multiplied, "call", remat.CheckpointPolicy.OFFLOAD),
}


@pytest.mark.parametrize("make", ["load", "pickle", "a storage"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("changes", [False, True])
def test_values_that_are_saved_and_that_only_a_part_left_out_reads_are_compared(make, reader, changes):
    calls = []

    def fn(x):
        calls.append(0)
        return READERS[reader]()(x.sin(), COUNTED[make](len(calls) if changes else 1)).exp()

    def step(wrap):
        x = torch.ones(3, requires_grad=True)
        wrap(fn)(x).sum().backward()
        return x.grad

    kept = remat.checkpoint(region_name="block", offload_store=remat.host_memory_store())
    if changes:
        with pytest.raises(remat.ReplayMismatch, match="(with|It has) other values"):
            step(kept)
    else:
        assert_equal(step(lambda fn: fn), step(kept))


def test_large_numbers_of_the_host_are_compared_as_a_whole_whatever_a_policy_keeps():
    calls = []

    def fn(x):
        calls.append(0)
        return (x.sin() * torch.tensor(np.append(np.zeros(1 << 18), len(calls)))[-1]).exp()

    with pytest.raises(remat.ReplayMismatch, match="aten::lift_fresh"):
        remat.checkpoint(region_name="block", policy=["aten::lift_fresh"])(fn)(leaf(3)).sum().backward()


def test_another_file_that_is_mapped_raises(tmp_path):
    for n in (1, 2):
        (tmp_path / str(n)).write_bytes(np.full(3, n, dtype=np.float32).tobytes())
    calls = []

    def fn(x):
        calls.append(0)
        return (x.sin() * torch.from_file(str(tmp_path / str(len(calls))), size=3)).exp()

    y = region(fn)(leaf(3))
    with pytest.raises(remat.ReplayMismatch, match="expected"):
        y.sum().backward()


@pytest.mark.parametrize("draw", [lambda: np.random.rand(3), lambda: [random.random() for _ in range(3)]])
def test_random_numbers_of_the_host_raise(draw):
    with pytest.raises(remat.ReplayMismatch):
        region(lambda x: (x.sin() * torch.tensor(draw())).exp())(leaf(3)).sum().backward()


def test_memory_of_the_host_that_is_written_later_raises():
    array = np.ones(3, dtype=np.float32)
    outside = torch.from_numpy(array)
    y = region(lambda x: (x.sin() * outside).exp())(leaf(3))
    array[1] = 5
    with pytest.raises(RuntimeError, match=r"region 'block', slot \d+, op aten::mul.*the host has written it"):
        y.sum().backward()


def test_memory_of_the_host_that_an_op_writes_later_raises_as_other_memory():
    outside = torch.from_numpy(np.ones(3, dtype=np.float32))
    y = region(lambda x: (x.sin() * outside).exp())(leaf(3))
    outside.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation(?s:.*)op aten::mul.*outside the region as the"):
        y.sum().backward()


# Generators
def seeded_anew(x, state):
    with torch.random.fork_rng(devices=[]):
        torch.seed()
        return (x * torch.rand(3)).exp()


def seeded_by_a_counter(x, state):
    state.append(0)
    torch.manual_seed(len(state))
    return (x * torch.rand(3)).exp()


def set_by_a_counter(x, state):
    state.append(0)
    default_generator().set_state(generator_of(len(state)).get_state())
    return torch.dropout(x.sin(), 0.5, True).exp()


@pytest.mark.parametrize("fn", [seeded_anew, seeded_by_a_counter, set_by_a_counter])
def test_another_seed_in_the_replay_raises(fn):
    state = []
    y = region(lambda x: fn(x, state))(leaf(3))
    with pytest.raises(remat.ReplayMismatch, match="region 'block'"):
        y.sum().backward()


def test_the_same_seed_in_the_replay_is_plain():
    def program(wrap):
        def fn(x):
            torch.manual_seed(5)
            return (x * torch.rand(3)).exp() * torch.dropout(x, 0.5, True)

        x = leaf(3)
        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, region)


def test_without_preserve_rng_state_other_numbers_are_let_pass():
    y = remat.checkpoint(preserve_rng_state=False)(lambda x: (x * torch.rand(3)).exp())(leaf(3))
    y.sum().backward()


# Other ops
IN_INFERENCE = {
    "made": lambda x, w, n: x.sin() + w.mul(2).roll(n, 0),
    "number": lambda x, w, n: x.sin() + w.mul(n),
    "captured": lambda x, w, n: x.sin() + FROZEN.roll(n, 0),
}
with torch.inference_mode():
    FROZEN = torch.randn(4, 4)


@pytest.mark.parametrize("case", IN_INFERENCE)
def test_other_ops_on_inference_tensors_raise(case):
    w, count = torch.randn(4, 4), [0]

    def fn(x):
        count[0] += 1
        with torch.inference_mode():
            s = IN_INFERENCE[case](x.detach(), w, count[0])
        return (x.sin() + s).exp()

    y = remat.checkpoint()(fn)(leaf(4, 4))
    with pytest.raises(remat.ReplayMismatch, match="as in the forward, got aten::"):
        y.sum().backward()


FACTORIES = {
    "values": (lambda: torch.zeros(4, 4), lambda: torch.ones(4, 4)),
    "eye": (lambda: torch.ones(4, 4), lambda: torch.eye(4)),
    "window": (lambda: torch.hann_window(4), lambda: torch.hamming_window(4)),
    "periodic": (lambda: torch.hann_window(4), lambda: torch.hann_window(4, periodic=False)),
    "offset": (lambda: torch.tril_indices(4, 4)[0, :4], lambda: torch.tril_indices(4, 4, offset=1)[0, :4]),
    "frequencies": (lambda: torch.fft.fftfreq(4), lambda: torch.fft.fftfreq(4, d=2.0)),
    "kaiser": (lambda: torch.kaiser_window(4, False, 12.0), lambda: torch.kaiser_window(4, False, 3.0)),
    "bool": (lambda: torch.ones(4, dtype=torch.bool), lambda: torch.zeros(4, dtype=torch.bool)),
    "number": (lambda: torch.full((4,), 1.0), lambda: torch.full((4,), 2.0)),
    "range": (lambda: torch.arange(4), lambda: torch.arange(1, 5)),
}


@pytest.mark.parametrize("nested", (False, True))
@pytest.mark.parametrize("factory", FACTORIES)
def test_another_factory_raises(factory, nested):
    count = [-1]

    def fn(x):
        count[0] += 1
        return (x.exp() * FACTORIES[factory][count[0] % 2]()).sin()

    wrapped = remat.checkpoint()(fn)
    y = (remat.checkpoint()(lambda x: wrapped(x) * 1) if nested else wrapped)(leaf(4, 4))
    with pytest.raises(remat.ReplayMismatch, match=r"expected aten::\w+.* as in the forward, got aten::"):
        y.sum().backward()


# Results that a SAVE call cannot replace
def test_a_save_call_refuses_results_with_a_dispatch_of_their_own():
    from torch.testing._internal.two_tensor import TwoTensor

    def pair():
        return TwoTensor(torch.randn(4), torch.randn(4)).requires_grad_()

    save = remat.native_op(torch.exp, "a", SAVE)
    with pytest.raises(NotImplementedError, match=r"region 'block', call 'a' \(SAVE\), result 0 .* subclass"):
        region(lambda x: save(x).sin())(pair())
    x = pair()
    region(lambda x: x.exp().sin())(x).sum().backward()
    torch.testing.assert_close(x.grad.a, x.detach().a.exp().cos() * x.detach().a.exp(), rtol=0, atol=0)


def test_a_buffer_into_which_a_save_call_wrote_what_requires_grad_is_not_read():
    buffer = torch.zeros(4)

    def fn(x):
        remat.native_op(lambda y: buffer.add_(y).sum(), "a", SAVE)(x.sin())
        return (x * buffer).sin()

    with pytest.raises(NotImplementedError, match=r"region 'block', op aten::mul.*a SAVE call has written a value with a"):
        region(fn)(leaf(4))


# Transforms inside
@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.func.grad(lambda r: r.sin().sum())(x.exp()),
        lambda x: torch.func.grad(lambda r: (r * 2).sum())(x),
        lambda x: torch.func.jacrev(torch.sin)(x).sum(0) * x,
        lambda x: torch.func.vmap(torch.func.grad(torch.sin))(x) * x,
    ],
)
def test_gradient_transforms_inside_are_refused_and_leave_nothing(transform):
    gc.collect()
    before = live_region_count()
    for _ in range(3):
        with pytest.raises(NotImplementedError, match=r"region 'block', op aten::.*torch\.func"):
            region(lambda x: transform(x).cos())(leaf(4))
    gc.collect()
    assert live_region_count() == before


def test_vmap_inside_is_plain():
    def program(wrap):
        x = leaf(4, 3)
        wrap(lambda x: torch.func.vmap(lambda row: (row * 2).sin().exp())(x))(x).sum().backward()
        return x.grad

    assert_same(program, region)


# Uninitialised memory
def selected(x):
    t = torch.where(x.detach() > 0, x.detach().sin(), torch.empty(6, 4))
    return torch.where(x.detach() > 0, t, x.detach().cos())


UNWRITTEN = {
    "where": selected,
    "new_empty": lambda x: torch.where(x > 9, x.detach().new_empty(6, 4), x),
    "empty_strided": lambda x: torch.where(x > 9, torch.empty_strided((6, 4), (1, 6)), x),
    "distribution": lambda x: torch.distributions.VonMises(x.detach(), x.detach().exp()).sample(),
    "vmap": lambda x: torch.vmap(lambda row: torch.nn.functional.dropout(row.sin(), 0.5), randomness="different")(x),
}


@pytest.mark.parametrize("engine", ("function", "auto"))
@pytest.mark.parametrize("reads", UNWRITTEN)
def test_reading_memory_without_values_is_plain(reads, engine):
    def program(wrap):
        x = leaf(6, 4)
        fn = wrap(lambda x: (UNWRITTEN[reads](x) * x).exp())
        for _ in range(3):
            others = [torch.full((6, 4), float(n)) for n in range(9)]  # contents of memory that is freed and reused
            y = fn(x)
            del others
            y.sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(replay=engine))


class Fill(TorchDispatchMode):
    """Fills uninitialised memory, as debugging modes and pools do."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.fill_(3.0) if func is torch.ops.aten.empty.memory_format else result


@pytest.mark.parametrize("inside", (False, True))
def test_what_a_mode_makes_of_memory_without_values_stays(inside):
    def fn(x):
        with Fill() if inside else contextlib.nullcontext():
            t = torch.empty(4)
        return (x * t).exp()

    def program(wrap):
        x = leaf(4)
        with contextlib.nullcontext() if inside else Fill():
            y = wrap(fn)(x)
            y.sum().backward()
        return y.detach(), x.grad

    assert_same(program, region)


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64))
def test_memory_without_values_is_filled_as_deterministic_algorithms_want_it(dtype):
    torch.use_deterministic_algorithms(True)
    try:
        made = []
        region(lambda x: (made.append(torch.empty(4, dtype=dtype)), x.sin())[1])(leaf(4)).sum().backward()
        wanted = torch.empty(4, dtype=dtype)
        for tensor in made:
            assert torch.equal(tensor.nan_to_num(7.0), wanted.nan_to_num(7.0))
    finally:
        torch.use_deterministic_algorithms(False)


OUT = {
    "empty_strided": lambda out: torch.ops.aten.empty_strided.out([2, 4], [4, 1], out=out),
    "empty_like": lambda out: torch.ops.aten.empty_like.out(torch.ones(2, 4), out=out),
    "new_empty": lambda out: torch.ops.aten.new_empty.out(torch.ones(1), [2, 4], out=out),
}


@pytest.mark.parametrize("make", OUT)
def test_memory_that_is_given_to_empty_keeps_the_rest(make):
    def program(wrap):
        x, buffer = leaf(4), torch.ones(4, 4)

        def fn(x):
            with torch.no_grad():
                OUT[make](buffer[:2])
            return (x * buffer[2:].sum()).exp()

        wrap(fn)(x).sum().backward()
        return x.grad, buffer[2:]

    assert_same(program, region)


# Choice among several tensors of one shape
class Keeps(torch.autograd.Function):
    """Saves a tensor that no op reads."""

    @staticmethod
    def forward(ctx, x, kept):
        ctx.save_for_backward(kept)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


CAPTURED = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
OTHERS = {
    "read": lambda a, b: a.exp(),
    "operands": lambda a, b: (a - b).exp(),
    "where": lambda a, b: torch.where(a.detach() > 0.5, a, b).exp(),
    "stacked": lambda a, b: torch.stack([a, b]).cumsum(0).exp(),
    "a view": lambda a, b: (a.view(1, 2) * 1).exp(),
    "written": lambda a, b: (a.mul_(2), (a * b.exp()).exp())[1],
    "out": lambda a, b: torch.mul(b.detach(), 2, out=torch.empty(2)) * (torch.neg(b.detach(), out=a.detach()) * b).exp(),
    "of a list": lambda a, b: (torch._foreach_mul([a, b], 2)[0] * 1).exp(),
    "result of a list": lambda a, b: b.exp(),
    "index": lambda a, b: a.index_add(0, torch.tensor([0]), b[:1]).exp(),
    "in a nested region": lambda a, b: remat.checkpoint()(lambda t: (t * 1).exp())(a),
    "in a call": lambda a, b: remat.native_op(torch.square, "call", SAVE)(a),
    "in a custom function": lambda a, b: Keeps.apply(b.sum() + a, a),
    "captured in a custom function": lambda a, b: None,
}


@pytest.mark.parametrize("engine", ("function", "nested", "three deep", "auto in function", "tape in function"))
@pytest.mark.parametrize("other", OTHERS)
def test_another_tensor_that_the_function_makes(other, engine):
    count = [0]

    def fn(x):
        count[0] += 1
        swapped = count[0] % 2 == 0
        if other == "captured in a custom function":
            return Keeps.apply(x.sin(), CAPTURED[swapped])
        a, b = x.sin(), x.cos()
        if other == "result of a list":
            results = torch._foreach_mul([a, b], 2.0)
            return OTHERS[other](None, results[swapped])
        return OTHERS[other](*((b, a) if swapped else (a, b)))

    inner = {"auto in function": "auto", "tape in function": "tape"}.get(engine, "function")
    wrapped = remat.checkpoint(region_name="inner", replay=inner)(fn)
    for _ in range({"function": 0, "three deep": 2}.get(engine, 1)):
        wrapped = remat.checkpoint(region_name="outer")(lambda x, wrapped=wrapped: wrapped(x) * 1)
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    y = wrapped(x)
    if engine == "tape in function":  # the tape needs nothing of the outer region, so it may be right
        count[0] = 0
        expected = torch.autograd.grad(fn(x).sum(), x)
        with contextlib.suppress(remat.ReplayMismatch):
            assert_equal(expected, torch.autograd.grad(y.sum(), x))
        return
    with pytest.raises(remat.ReplayMismatch, match=r"region '(inner|outer)'"):
        y.sum().backward()


PARTS = {  # parts of memory from outside, or of a tensor that the function makes, selected by a number 1, 2, ...
    "stride": lambda t, n: t.view(-1)[::n][:2],
    "row stride": lambda t, n: t.view(-1).as_strided((2, 2), (n, 1)),
    "offset": lambda t, n: t.view(-1)[n:][:2],
    "far offset": lambda t, n: t.view(-1)[n * 8192 :][:2],
    "transposed": lambda t, n: t.view(-1).as_strided((2, 2), (1, n)),
}


@pytest.mark.parametrize("numbers", [(1, 2), (2, 3), (3, 2), (2, 4), (4, 6), (8, 16), (5, 7)])
@pytest.mark.parametrize("reader", ("op", "custom function"))
@pytest.mark.parametrize("made", (False, True))
@pytest.mark.parametrize("part", PARTS)
def test_another_part_of_a_tensor(part, made, reader, numbers):
    weight = torch.randn(17 * 8192 if part == "far offset" else 64, requires_grad=True)
    count = [-1]

    def fn(x):
        count[0] += 1
        whole = weight.sin() if made else weight
        read = PARTS[part](whole, numbers[count[0]])
        return Keeps.apply(x, read) if reader == "custom function" else x * read.clone().sum()

    y = remat.checkpoint()(fn)(leaf(2)).sin()
    with pytest.raises(remat.ReplayMismatch, match="as in the forward, got"):
        y.sum().backward()


@pytest.mark.parametrize("nested", (False, True))
def test_another_result_of_calls(nested):
    count = [0]

    def fn(x):
        count[0] += 1
        a = remat.native_op(torch.sin, "a", SAVE)(x)
        b = remat.native_op(torch.cos, "b", SAVE)(x)
        return ((b if count[0] % 2 == 0 else a) * 1).exp()

    wrapped = remat.checkpoint(region_name="inner")(fn)
    if nested:
        wrapped = remat.checkpoint(region_name="outer")(lambda x, wrapped=wrapped: wrapped(x) * 1)
    y = wrapped(leaf(2))
    with pytest.raises(remat.ReplayMismatch, match="as in the forward, got aten::mul"):
        y.sum().backward()


def test_the_error_names_the_ops_that_made_the_tensors():
    count = [0]

    def fn(x):
        count[0] += 1
        a, b = x.sin(), x.cos()
        return (a if count[0] == 1 else b).exp()

    y = region(fn)(leaf(2))
    message = rf"op 2: expected aten::exp\(float32 \[2\] on {DEVICE}\S* requires grad of op 0\).*got .* of op 1\).*which one"
    with pytest.raises(remat.ReplayMismatch, match=message):
        y.sum().backward()


FILLED = {
    "from_numpy": lambda array: torch.from_numpy(array),
    "frombuffer": lambda array: torch.frombuffer(memoryview(array), dtype=torch.float32),
    "dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("wrapped", FILLED)
@pytest.mark.parametrize("changes", (False, True))
def test_what_the_host_fills_after_it_is_wrapped_is_compared(changes, wrapped):
    def program(wrap):
        number = [2.0]

        def fn(x):
            array = np.zeros(4, np.float32)
            t = FILLED[wrapped](array)
            array[:] = number[0]
            return (x * t).exp()

        x = leaf(4)
        y = wrap(fn)(x)
        number[0] += changes
        y.sum().backward()
        return x.grad

    if changes:
        with pytest.raises(remat.ReplayMismatch, match="A number differs"):
            program(region)
    else:
        assert_same(program, region)


class SavesCaptured(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, get):
        ctx.save_for_backward(get())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize("early_stop", [True, False], ids=["early stop", "to the end"])
@pytest.mark.parametrize("part", ["itself", "a view"])
@pytest.mark.parametrize("left", ["alive", "gone"])
def test_another_captured_tensor_that_only_a_custom_function_saves(left, part, early_stop):
    def get():
        return captured[0][0] if part == "a view" else captured[0]

    shape = (2, 3) if part == "a view" else (3,)
    captured = [torch.full(shape, 1.0)]
    fn = remat.checkpoint(region_name="block", early_stop=early_stop)(lambda x: SavesCaptured.apply(x, get).exp())
    same, y = fn(leaf(3)), fn(leaf(3))
    same.sum().backward()
    old = captured[0] if left == "alive" else None
    captured[0] = torch.full(shape, 5.0)
    with pytest.raises(remat.ReplayMismatch, match=r"region 'block', slot 0: expected.*It is another tensor"):
        y.sum().backward()
    del old


def packed(value):
    weight = torch.quantize_per_tensor(torch.full((4, 4), value), 0.05, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, torch.zeros(4))


@pytest.mark.torch_warns  # warns that quantized tensors are deprecated
@pytest.mark.parametrize("left", ["alive", "gone"])
def test_another_object_with_weights_raises(left):
    weights = [packed(1.0)]
    fn = region(lambda x: (x * torch.ops.quantized.linear_dynamic(x.detach(), weights[0])).exp())
    y = fn(leaf(4, 4))
    old = weights[0] if left == "alive" else None
    weights[0] = packed(5.0)
    with pytest.raises(remat.ReplayMismatch, match="quantized::linear_dynamic"):
        y.sum().backward()
    del old


def test_an_object_that_the_function_makes_anew_is_no_difference():
    def program(wrap):
        kept, x = packed(2.0), leaf(4, 4)

        def fn(x):
            y = torch.ops.quantized.linear_dynamic(x.detach(), packed(1.0))
            return (x * y * torch.ops.quantized.linear_dynamic(x.detach(), kept)).exp()

        wrap(fn)(x).sum().backward()
        return x.grad

    assert_same(program, region)


@pytest.mark.torch_warns  # warns that compressed layouts are in beta
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_values_of_a_captured_sparse_tensor_that_are_written_by_way_of_data(layout):
    dense = torch.eye(4)
    sparse = {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[layout]()
    values = sparse._values() if layout == "coo" else sparse.values()
    fn = region(lambda x: (sparse @ x).exp())
    same, y = fn(leaf(4, 4)), fn(leaf(4, 4))
    same.sum().backward()
    values.data.mul_(2)
    with pytest.raises(RuntimeError, match="was written without a new version"):
        y.sum().backward()


def test_scales_of_a_captured_quantized_tensor_that_are_written_are_noticed():
    scales = torch.ones(4)
    weight = torch.quantize_per_channel(torch.eye(4), scales, torch.zeros(4), 0, torch.qint8)
    y = region(lambda x: (x @ weight.dequantize()).exp())(leaf(4, 4))
    weight.q_per_channel_scales().mul_(2)
    with pytest.raises(RuntimeError, match="was written without a new version"):
        y.sum().backward()


@pytest.mark.parametrize("policy", [SAVE, remat.CheckpointPolicy.OFFLOAD, None], ids=["save", "offload", "none"])
@pytest.mark.parametrize("replay", ["function", "auto"])
@pytest.mark.torch_warns  # warns that there is no tape
def test_memory_that_the_function_shares_with_other_processes(replay, policy):
    def program(wrap):
        kept, w, x = torch.arange(8.0), torch.eye(8), leaf(4, 8)
        for _ in range(2):
            wrap(lambda x: ((x @ w) * kept.clone().share_memory_()).sin())(x).sum().backward()
        return x.grad

    options = {} if policy is None else {"policy": remat.PolicyTable().op("aten::copy_", policy)}
    store = remat.host_memory_store() if policy is remat.CheckpointPolicy.OFFLOAD else None
    assert_same(program, remat.checkpoint(replay=replay, offload_store=store, **options))
