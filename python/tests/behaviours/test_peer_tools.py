# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 133 to 138 of torch_remat 0.2.2: out of memory, origins of tensors, traces."""

import asyncio
import copy
import io
import pickle
import threading

import pytest
import torch
from kept import Saving, recompute, save
from programs import checkpointed, leaf
from torch._subclasses.fake_tensor import FakeTensorMode

import remat_meta as remat
from remat_meta import _oom


def test_133_roots_are_the_tensors_with_a_grad_fn():
    parameter, plain = leaf(3), torch.ones(3)
    result = parameter * 2
    with FakeTensorMode():
        fake = torch.ones(3, requires_grad=True) * 2
    assert fake.grad_fn is not None
    found = {id(tensor) for tensor in remat.discover_autograd_roots()}
    assert id(result) in found
    assert found.isdisjoint({id(parameter), id(plain), id(fake)})


def test_134_the_observer_prints_a_report_and_never_raises(capsys, monkeypatch):
    y = remat.checkpoint(region_name="layer")(lambda x: save(Saving.apply, "op")(x.sin()))(leaf(3))
    assert remat.oom_observer(1, 1024, 4096, 512) is None
    text = capsys.readouterr().err
    assert "device 1 is out of memory: 1024 B were asked for." in text
    assert "The device has 4096 B, of which 512 B are free." in text
    assert "layer::op: 12 B" in text and "failed" not in text
    assert y.requires_grad

    def fails(*_):
        raise KeyboardInterrupt("in the report")

    monkeypatch.setattr(_oom, "discover_autograd_roots", fails)
    assert remat.oom_observer(0, 1, 2, 3) is None
    text = capsys.readouterr().err
    assert "the report of saved tensors failed" in text and "KeyboardInterrupt: in the report" in text


def test_135_the_report_survives_earlier_backwards(capsys):
    freed = Saving.apply(leaf(3), "internal")
    freed.sum().backward()
    loss = leaf(7).tanh().sum()
    remat.oom_observer(0, 1, 2, 3)
    text = capsys.readouterr().err
    assert "saved for backward:" in text and "TanhBackward0" in text and "failed" not in text
    assert "SavingBackward" not in text  # the node has released its tensors
    assert freed.requires_grad and loss.requires_grad


def block_of(tensor, file="project/model.py", state="active_allocated", size=None):
    storage = tensor.untyped_storage()
    return {
        "address": storage.data_ptr(), "size": size or storage.nbytes(), "state": state,
        "frames": [{"filename": "??", "line": 0, "name": "at::empty"},
                   {"filename": "/x/torch/nn/modules/linear.py", "line": 1, "name": "forward"},
                   {"filename": "/x/remat_meta/_sequential.py", "line": 1, "name": "__call__"},
                   {"filename": file, "line": 12, "name": "attend"},
                   {"filename": "project/train.py", "line": 3, "name": "main"}],
    }


def test_136_tensors_are_annotated_with_where_they_were_allocated(monkeypatch):
    a, b, inactive, unknown = (torch.ones(64) for _ in range(4))
    blocks = [block_of(b, "project/mlp.py"), block_of(a), block_of(inactive, state="inactive")]
    annotate = remat.memory_snapshot_annotate({"segments": [{"blocks": blocks[:1]}, {"blocks": blocks[1:]}]})
    assert annotate(a) == annotate(a[3:].view(61, 1)) == "model.py:12 attend"
    assert annotate(b) == "mlp.py:12 attend"
    assert annotate(inactive) is None and annotate(unknown) is None
    assert remat.memory_snapshot_annotate({})(a) is None
    only_torch = block_of(a)
    only_torch["frames"] = only_torch["frames"][1:2]
    assert remat.memory_snapshot_annotate({"segments": [{"blocks": [only_torch]}]})(a) == "linear.py:1 forward"
    text = remat.format_saved_tensors_report((a.requires_grad_() * 2).exp(), annotate)
    assert "ExpBackward0" in text

    fetched = []
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: fetched.append(1) or {"segments": []})
    remat.clear_memory_snapshot_cache()
    for _ in range(2):
        remat.memory_snapshot_annotate()
    assert fetched == [1]
    remat.clear_memory_snapshot_cache()
    remat.memory_snapshot_annotate()
    assert fetched == [1, 1]
    remat.clear_memory_snapshot_cache()


def test_136_annotations_are_in_reports_of_regions():
    tensors = []

    def annotate(tensor):
        tensors.append(tensor)
        return "model.py:12 attend"

    y = remat.checkpoint(region_name="layer")(lambda x: save(Saving.apply, "op")(x.sin()))(leaf(3))
    text = remat.format_saved_tensors_report(annotate=annotate)
    assert "12 B  internal  [3]  float32 on cpu  model.py:12 attend" in text
    assert [tensor.shape for tensor in tensors] == [(3,)] and not tensors[0].requires_grad
    with pytest.raises(TypeError, match="annotate: expected a function"):
        remat.format_saved_tensors_report(annotate=3)
    assert y.requires_grad


def attention(x):
    y = save(torch.exp, "scores")(x.sin())
    return recompute(torch.cos, "out")(y)


def layer(x):
    with remat.name_scope("layer"):
        return remat.trace_scope(attention, "attention", metadata="causal")(x)


def test_137_a_trace_lists_calls_and_scopes_of_forwards():
    with remat.collect_trace() as trace:
        y = checkpointed(layer)(leaf(3))
        save(torch.exp, "outside")(y)  # a plain call
        z = checkpointed(lambda x: save(lambda x: save(torch.exp, "inner")(x).cos(), "outer")(x.sin()))(leaf(3))
        y.sum().backward()
        offload = remat.CheckpointPolicy.OFFLOAD
        stored = remat.checkpoint(offload_store=remat.host_memory_store())
        stored(lambda x: remat.native_op(torch.exp, "disk", offload)(x.sin()))(leaf(3))
    checkpointed(layer)(leaf(3))  # no longer collected
    assert trace.format() == (
        "remat trace\n"
        "attention [causal]\n"
        "  layer/scores: save\n"
        "  layer/out: recompute\n"
        "outer: save\n"
        "disk: offload"
    )
    scope, outer, disk = trace.entries
    assert (scope.name, scope.metadata) == ("attention", "causal")
    assert [(entry.name, entry.recompute) for entry in scope.entries] == [("layer/scores", False), ("layer/out", True)]
    assert (outer.name, outer.recompute, disk.policy) == ("outer", False, offload)
    assert z.requires_grad


def test_137_the_innermost_trace_of_a_context_collects():
    with remat.collect_trace() as outer:
        thread = threading.Thread(target=lambda: checkpointed(layer)(leaf(3)))
        thread.start()
        thread.join()
        with remat.collect_trace() as inner:
            checkpointed(lambda x: save(torch.exp, "inner")(x.sin()))(leaf(3))
        checkpointed(lambda x: save(torch.exp, "outer")(x.sin()))(leaf(3))
    assert inner.format() == "remat trace\ninner: save" and outer.format() == "remat trace\nouter: save"


def test_137_tasks_have_traces_of_their_own():
    async def task(name):
        with remat.collect_trace() as trace:
            for _ in range(3):
                checkpointed(lambda x: save(torch.exp, name)(x.sin()))(leaf(3))
                await asyncio.sleep(0)
        return trace.format()

    async def main():
        return await asyncio.gather(task("a"), task("b"))

    assert asyncio.run(main()) == [f"remat trace{3 * f'{chr(10)}{name}: save'}" for name in "ab"]


def test_137_a_scope_ends_with_an_exception():
    def fails(x):
        raise ValueError

    with remat.collect_trace() as trace:
        with pytest.raises(ValueError):
            checkpointed(remat.trace_scope(fails, "scope"))(leaf(3))
        checkpointed(lambda x: save(torch.exp, "after")(x.sin()))(leaf(3))
    assert trace.format() == "remat trace\nscope\nafter: save"


def test_137_a_recording_may_run_at_the_same_time(tmp_path):
    from test_package import run_python

    code = """
        import sys
        import torch, remat_meta as remat
        with remat.collect_trace() as trace:
            fn = remat.region(torch.exp, "call", recompute=False)
            remat.checkpoint(region_name="block")(fn)(torch.ones(2, requires_grad=True).sin())
        print(trace.format())
    """
    assert run_python(code, REMAT_RECORD=str(tmp_path)) == "remat trace\ncall: save\n"
    assert b"call" in next(tmp_path.glob("*.rec")).read_bytes()


@pytest.mark.parametrize(
    ("args", "options", "error", "text"),
    [
        ((3, "name"), {}, RuntimeError, "expects a function as its first argument"),
        ((len, 3), {}, RuntimeError, "name: must be a string"),
        ((len, ""), {}, ValueError, "name: must be non-empty"),
        ((len, "name"), {"metadata": ""}, ValueError, "metadata: must be non-empty"),
        ((len, "name"), {"metadata": 3}, RuntimeError, "metadata: must be a string"),
    ],
)
def test_138_what_trace_scope_takes(args, options, error, text):
    with pytest.raises(error, match=text):
        remat.trace_scope(*args, **options)


def test_138_scoped_functions_are_functions():
    scoped = remat.trace_scope(layer, "scope")
    assert scoped.__name__ == "layer" and scoped.__wrapped__ is layer

    class Model:
        run = remat.trace_scope(lambda self, x: (self, x), "run")

    model = Model()
    assert model.run(3) == (model, 3)
    for other in (pickle.loads(pickle.dumps(scoped)), copy.deepcopy(scoped)):
        assert torch.equal(other(torch.ones(2)), layer(torch.ones(2)))


def test_138_reports_may_be_printed_to_a_file():
    file = io.StringIO()
    remat.print_saved_tensors_report(file=file)
    assert file.getvalue().startswith("saved for backward: 0 B resident")
