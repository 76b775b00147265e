# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 101 to 114 of torch_remat 0.2.2: hooks on saved tensors, offload."""

import threading

import pytest
import torch
from kept import Saving, recompute, save
from programs import checkpointed, leaf
from same import assert_equal, assert_same

import remat_meta as remat
from remat_meta import CheckpointPolicy, SavedTensorKind

INPUT, BACKWARD, RESULT = SavedTensorKind


class Log:
    """Hooks that keep copies and log the tensors that they get."""

    def __init__(self, label="", **more):
        self.label, self.more = label, more
        self.packed, self.unpacked, self.given = [], [], []

    def pack(self, tensor):
        info = remat.current_saved_tensor_info()
        text = self.label + info.kind.name + (f" of {info.call}" if info.call else "")
        if info.context is not None:
            text += f" at {info.context}"
        self.packed.append(text)
        self.given.append(tensor)
        return text, tensor.clone()

    def unpack(self, packed):
        self.unpacked.append(packed[0])
        return packed[1]

    def scope(self):
        return remat.saved_tensors_hooks(self.pack, self.unpack, **self.more)

    def pair(self):
        return (self.pack, self.unpack, *self.more.values())


def inner(*shape):
    """Returns a non-leaf: a leaf that is still alive is not unpacked."""
    return leaf(*shape).exp()


def block(x):
    """Saves the argument, an intermediate of a SAVE call and one of its results; has bare code and a RECOMPUTE call."""
    y = save(lambda x: Saving.apply(x, "internal"), "a")(x.sin())
    return recompute(lambda y: y.cos().exp(), "b")(y)


BLOCK = ["CHECKPOINT_INPUT", "BACKWARD of a", "SAVE_OUTPUT of a"]


def test_101_outside_of_regions_as_torchs_own():
    def calls(make):
        log = []

        def pack(t):
            log.append(("pack", t.shape))
            return t.clone()

        def unpack(t):
            log.append(("unpack", t.shape))
            return t

        torch.manual_seed(0)
        x, w = leaf(2, 3), leaf(3, 4)
        with make(pack, unpack):
            y = ((x @ w).sin() * 2).exp()
        y.sum().backward()
        return log, x.grad, w.grad

    (expected, *grads), (got, *same) = calls(torch.autograd.graph.saved_tensors_hooks), calls(remat.saved_tensors_hooks)
    assert expected == got and len(got) > 4
    assert_equal(grads, same)
    with pytest.raises(TypeError, match="pack: expected a function, got int"):
        remat.saved_tensors_hooks(3, torch.sin)
    with pytest.raises(TypeError, match="capture_context: expected a function, got int"):
        remat.saved_tensors_hooks(torch.sin, torch.sin, capture_context=3)
    with pytest.raises(TypeError):
        remat.saved_tensors_hooks(torch.sin, torch.sin, torch.sin)


def test_102_in_regions_they_get_what_save_calls_keep():
    log = Log()
    with log.scope():
        y = checkpointed(block)(leaf(3))
    assert log.packed == BLOCK
    y.sum().backward()
    rebuilt = Log()
    with rebuilt.scope():
        checkpointed(lambda x: save(lambda y: Saving.apply(y, "input"), "a")(x.sin()))(leaf(3)).sum().backward()
    assert rebuilt.packed == ["CHECKPOINT_INPUT"]


def test_103_pack_once_in_the_forward_unpack_once_per_load():
    log, x = Log(), inner(3)
    with log.scope():
        y = checkpointed(block)(x)
        for backwards in (1, 2):
            y.sum().backward(retain_graph=True)
            inside = [text for text in log.packed if "INPUT" in text or "of a" in text]
            assert inside == BLOCK
            assert sorted(log.unpacked) == sorted(BLOCK * backwards)


def test_104_unpack_works_after_the_scope_has_gone():
    log, x = Log(), inner(3)
    with log.scope():
        y = checkpointed(block)(x)
    y.sum().backward()
    assert sorted(log.unpacked) == sorted(BLOCK)


@pytest.mark.parametrize("inner", ["torch", "remat"])
def test_105_the_innermost_pair_around_a_region_gets_its_arguments(inner):
    ours, shapes = Log(), []
    torchs = torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape) or t, lambda t: t)
    first, second = (ours.scope(), torchs) if inner == "torch" else (torchs, ours.scope())
    with first, second:
        y = checkpointed(block)(leaf(3))
    y.sum().backward()
    assert (len(shapes), len(ours.packed)) == ((3, 0) if inner == "torch" else (0, 3))


def test_106_the_pair_of_the_options_wins():
    option, around = Log(), Log()
    with around.scope():
        y = remat.checkpoint(saved_tensors_hooks=option.pair())(block)(leaf(3))
    assert option.packed == BLOCK and around.packed == []
    y.sum().backward()
    option = Log()
    remat.checkpoint(saved_tensors_hooks=option.scope())(block)(leaf(3)).sum().backward()
    assert option.packed == BLOCK


@pytest.mark.parametrize("kind", ["torch", "remat"])
def test_107_a_pair_inside_a_save_call_gets_what_that_saves(kind):
    inside, around, shapes = Log(), Log(), []

    def call(x):
        scope = inside.scope()
        if kind == "torch":
            scope = torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(1) or t, lambda t: t)
        with inside.scope(), scope:
            return Saving.apply(x, "internal")

    with around.scope():
        y = checkpointed(lambda x: save(call, "a")(x.sin()))(leaf(3))
    y.sum().backward()
    assert around.packed == ["CHECKPOINT_INPUT"]
    assert (len(shapes), len(inside.packed)) == ((1, 0) if kind == "torch" else (0, 1))


def test_108_pack_sees_no_dummy():
    log = Log()
    with log.scope():
        checkpointed(block)(leaf(3)).sum().backward()
    assert all(tensor.numel() == 3 for tensor in log.given)


def test_109_what_a_tensor_is_can_be_asked_in_pack_only():
    infos = []

    def pack(tensor):
        infos.append(remat.current_saved_tensor_info())
        return tensor.clone()

    def unpack(tensor):
        with pytest.raises(RuntimeError, match="pack"):
            remat.current_saved_tensor_info()
        return tensor

    with pytest.raises(RuntimeError, match=r"\[current_saved_tensor_info\]"):
        remat.current_saved_tensor_info()
    with remat.saved_tensors_hooks(pack, unpack):
        y = checkpointed(block)(leaf(3))
        outside = leaf(2).exp()
    (y.sum() + outside.sum()).backward()
    assert [(i.kind, i.region, i.call) for i in infos] == [
        (INPUT, "block", None), (BACKWARD, "block", "a"), (RESULT, "block", "a"), (BACKWARD, None, None),
    ]  # fmt: skip
    assert all(info.context is None for info in infos)


def test_110_a_context_is_that_of_the_place_where_a_tensor_is_made():
    place = ["around"]
    log = Log(capture_context=lambda: place[0])

    def fn(x):
        place[0] = "producer"
        y = save(lambda x: Saving.apply(x, "internal"), "a")(x.sin())
        place[0] = "consumer"
        return recompute(lambda y: y.cos().exp(), "b")(y)

    with log.scope():
        native = leaf(2).exp()
        y = checkpointed(fn)(leaf(3))
    (native.sum() + y.sum()).backward()
    assert log.packed == [
        "BACKWARD", "CHECKPOINT_INPUT at around", "BACKWARD of a at producer", "SAVE_OUTPUT of a at producer",
    ]  # fmt: skip


def test_111_pack_gets_a_detached_tensor_on_the_same_memory():
    given, w, x = [], torch.nn.Parameter(torch.ones(3)), leaf(3)
    w.tag = x.tag = "mine"
    with remat.saved_tensors_hooks(lambda t: given.append(t) or t, lambda t: t):
        y = checkpointed(lambda x: save(lambda x: x * w, "a")(x).sin())(x)
        z = x * w  # hooks get tensors outside of regions, too
    assert not any(t.requires_grad for t in given)

    def seen(of):
        cdata = of.untyped_storage()._cdata
        return [t for t in given if t.untyped_storage()._cdata == cdata]

    assert [type(t) for t in seen(w)] == [torch.nn.Parameter] * 2
    assert {type(t) for t in seen(x)} == {torch.Tensor} and len(seen(x)) >= 3
    assert all(t.tag == "mine" and t is not x and t is not w for t in seen(w) + seen(x))
    (y.sum() + z.sum()).backward()


def test_112_packed_memory_may_be_freed():
    def pack(tensor):
        kind = remat.current_saved_tensor_info().kind
        copy = tensor.clone()
        if kind is not INPUT:
            frees.append(tensor.untyped_storage())
        return copy

    def program(wrap):
        x = leaf(3)
        y = wrap(block)(x)
        for storage in frees:
            storage.resize_(0)
        y.sum().backward()
        return x.grad

    frees = []
    assert_same(program, remat.checkpoint(saved_tensors_hooks=(pack, lambda t: t)))
    assert len(frees) == 2


def test_113_results_are_unpacked_first_then_the_rest_as_nodes_run():
    log, x = Log(), inner(3)

    def fn(x):
        for i in range(2):
            y = save(lambda x: Saving.apply(x, "internal"), f"a{i}")(x.sin())
            x = recompute(lambda y: y.cos().exp(), f"b{i}")(y)
        return x

    with log.scope():
        y = checkpointed(fn)(x)
    y.sum().backward()
    assert log.unpacked == [
        "CHECKPOINT_INPUT", "SAVE_OUTPUT of a0", "SAVE_OUTPUT of a1", "BACKWARD of a1", "BACKWARD of a0",
    ]  # fmt: skip


class Store(remat.OffloadStore):
    """A store that keeps arrays."""

    class Ticket:
        def __init__(self, array):
            self.array = array

        def get(self):
            return torch.from_numpy(self.array.copy())

    def __init__(self):
        self.puts = 0

    def put(self, tensor):
        self.puts += 1
        return Store.Ticket(tensor.numpy().copy())


def test_114_an_offloaded_run_is_bitwise_the_plain_one():
    def program(wrap):
        x, w = leaf(3, 3), leaf(3, 3)

        def fn(x):
            y = remat.native_op(lambda x: (x @ w).exp(), "a", CheckpointPolicy.OFFLOAD)(x.sin())
            return recompute(torch.sin, "b")(y) * y

        wrap(fn)(x).sum().backward()
        return x.grad, w.grad

    log, store = Log(), Store()
    assert_same(program, remat.checkpoint(saved_tensors_hooks=log.pair()))
    assert_same(program, remat.checkpoint(offload_store=store))
    assert_same(program, remat.checkpoint(offload_store=remat.host_memory_store()))
    assert log.unpacked and store.puts > 0
    assert isinstance(remat.host_memory_store(), remat.OffloadStore)


def test_114_errors_of_a_store_are_named_and_pass():
    class Full(Store):
        def put(self, tensor):
            raise MemoryError("full")

    def run(store):
        call = remat.native_op(lambda x: x.exp().sin(), "a", CheckpointPolicy.OFFLOAD)
        return remat.checkpoint(offload_store=store)(lambda x: call(x.sin()))(leaf(3))

    with pytest.raises(MemoryError, match="full"):
        run(Full())

    class NoTicket(Store):
        def put(self, tensor):
            return 3

    with pytest.raises(ValueError, match="expected it to return a ticket with get.*, got int"):
        run(NoTicket())

    class BadTicket(Store):
        def put(self, tensor):
            ticket = super().put(tensor)
            ticket.get = lambda: "text"
            return ticket

    with pytest.raises(TypeError, match=r"\[OffloadStore\] get: expected it to return a Tensor, got str"):
        run(BadTicket()).sum().backward()
    with pytest.raises(TypeError, match="offload_store: expected an OffloadStore"):
        remat.checkpoint(offload_store=3)


def test_hooks_are_left_on_their_thread_and_the_innermost_first():
    outer, inner = Log("outer "), Log("inner ")
    first, second = outer.scope(), inner.scope()
    with pytest.raises(RuntimeError, match="got an exit without an enter"):
        first.__exit__(None, None, None)
    first.__enter__()
    second.__enter__()
    with pytest.raises(RuntimeError, match="got another order"):
        first.__exit__(None, None, None)
    errors = []

    def leave():
        try:
            second.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "expected to be left on its thread" in errors[0]
    leaf(2).exp()
    second.__exit__(None, None, None)
    leaf(2).exp()
    with first:  # opened once more
        leaf(2).exp()
    first.__exit__(None, None, None)
    leaf(2).exp()
    assert inner.packed == ["inner BACKWARD"] and outer.packed == ["outer BACKWARD"] * 2
