# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 119 to 132 of torch_remat 0.2.2: reports of the tensors that regions and graphs hold."""

import re

import pytest
import torch
from kept import Saving, recompute, save
from programs import checkpointed, leaf

import remat_meta as remat


class Names(torch.autograd.Function):
    """x -> 2x; saves the dict of tensors that `make(x)` returns, and x itself if it is asked to."""

    @staticmethod
    def forward(ctx, x, make):
        remat.save_for_backward(ctx, make(x))
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def region_of(make, name="op", region="layer", **options):
    """Returns the result of one SAVE call of Names, and the report taken at the end of the forward."""
    seen = []

    def fn(x):
        y = save(lambda x: Names.apply(x, make), name)(x.sin())
        seen.append(remat.format_current_memory_report())
        return y

    return remat.checkpoint(region_name=region, **options)(fn)(leaf(2, 12)), seen[0]


def bytes_in(text, pattern):
    """Returns the numbers of all lines that match."""
    return [int(found) for found in re.findall(pattern, text, re.MULTILINE)]


def storage_bytes(text):
    return bytes_in(text, r"^ +(\d+) B  ")


def test_119_the_current_region_is_reported_in_it_only():
    none = "No active remat checkpoint region"
    with pytest.raises(RuntimeError, match=none):
        remat.format_current_memory_report()
    seen = []

    def fn(x):
        seen.append(remat.format_current_memory_report())
        inner = remat.checkpoint(region_name="inner")
        return inner(lambda x: [seen.append(remat.format_current_memory_report()), x.exp()][1])(x.sin())

    y = remat.checkpoint(region_name="outer")(fn)(leaf(3))
    y.sum().backward()  # replays call the function, too
    first_lines = [text.splitlines()[0] for text in seen]
    assert [line.split(":")[0] for line in first_lines][:3] == ["outer", "inner", "outer"]
    with pytest.raises(RuntimeError, match=none):
        remat.format_current_memory_report()


def test_120_a_line_for_the_region_one_per_call_one_per_storage(capsys):
    seen = []

    def fn(x):
        y = save(Saving.apply, "one")(x.sin())
        y = save(lambda y: (y.exp(), y.cos()), "two")(y.tanh())[0].sin()
        seen.append(remat.format_current_memory_report(lambda t: f"sum {t.sum():.0f}" if t.dim() else None))
        remat.print_current_memory_report()
        return y

    y = remat.checkpoint(region_name="layer")(fn)(leaf(2, 3))
    lines = seen[0].splitlines()
    total, count = re.fullmatch(r"layer: (\d+) B resident in (\d+) storages", lines[0]).groups()
    sizes = storage_bytes(seen[0])
    assert sum(sizes) == int(total) and len(sizes) == int(count) == 3
    assert bytes_in(seen[0], r"^layer::one: (\d+) B$") == [48]  # a bare op reads its result
    assert bytes_in(seen[0], r"^layer::two: (\d+) B$") == [24]
    rows = [line for line in lines if line.startswith("  24 B")]
    assert all(re.search(r"\[2, 3\] +float32 on cpu +sum -?\d+$", row) for row in rows)
    assert len({row.index("[2, 3]") for row in rows}) == 1  # in columns
    assert capsys.readouterr().out.startswith("layer: 72 B resident in 3 storages\nlayer::one: 48 B\n")
    assert y.requires_grad  # y is alive until here, and keeps the reported tensors alive


def test_121_names_are_those_given_then_positions():
    seen = []

    def fn(x):
        y = save(Saving.apply, "named")(x.sin())
        y = save(torch.exp, "numbered")(y.tanh())
        z = save(lambda y: y + 1, "result")(y.tanh())
        seen.append((y.sin() + z.sin(), remat.format_current_memory_report())[1])
        return y.sin() + z.sin()

    y = remat.checkpoint(region_name="layer")(fn)(leaf(3))
    assert re.search(r"12 B  internal +\[3\]", seen[0])
    assert re.search(r"12 B  saved\.0 \(output 0\) +\[3\]", seen[0])
    assert re.search(r"layer::result: 12 B\n  12 B  output 0 +\[3\]", seen[0])
    assert y.requires_grad


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_121_a_saved_result_says_which_one_it_is_though_nobody_reads_it(replay):
    def two(x):
        x = x.sin()
        return x + 1, x.exp()

    def fn(x):
        y = save(torch.exp, "one")(x.sin())
        return y, *save(two, "two")(x.cos()), save(Saving.apply, "own")(x.tanh(), "output")

    y = remat.checkpoint(region_name="layer", replay=replay)(fn)(leaf(3))
    report = remat.format_saved_tensors_report()
    assert len(re.findall(r"12 B  saved\.0 \(output 0\) +\[3\]", report)) == 1
    assert len(re.findall(r"12 B  saved\.1 \(output 1\) +\[3\]", report)) == 1
    assert len(re.findall(r"12 B  output \(output 0\) +\[3\]", report)) == 1
    names = [row.name for region in remat.memory_report().regions for row in region.rows]
    assert {"one: saved.0 (result)", "two: saved.1 (result 1)", "own: output (result)"} <= {*names}
    assert y[0].requires_grad


def test_121_results_that_are_kept_for_code_outside_have_their_position():
    def fn(x):
        a, b = save(lambda x: (x + 1, x + 2), "two")(x.sin())
        return b.exp(), a

    y = remat.checkpoint(region_name="layer")(fn)(leaf(3))
    names = [row.name for region in remat.memory_report().regions for row in region.rows]
    assert "two: result 1" in names
    assert y[0].requires_grad


def test_122_names_of_one_tensor_are_joined_other_views_are_below():
    def make(x):
        power = x.exp()
        return {"a": power, "same": power.detach(), "flat": power.view(-1)}

    y, text = region_of(make)
    assert storage_bytes(text) == [96]
    assert re.search(r"96 B  a = same +\[2, 12\]", text)
    assert re.search(r"^ +- flat +\[24\] +view of 96 B$", text, re.MULTILINE)
    assert y.requires_grad


def test_123_views_show_how_much_of_their_storage_they_use():
    y, text = region_of(lambda x: {"part": x.exp()[:, :4]})
    assert re.search(r"96 B  part +\[2, 4\] +float32 on cpu +held for 32 B of 96 B", text)
    more, text = region_of(lambda x: (lambda p: {"q": p[:, :4], "k": p[:, 2:8]})(x.exp()))
    assert re.search(r"96 B  base of q, k +float32 on cpu +held for 64 B of 96 B", text)
    assert re.search(r"- q +\[2, 4\] +view of 32 B", text)
    assert re.search(r"- k +\[2, 6\] +view of 48 B", text)
    assert y.requires_grad and more.requires_grad


def test_124_what_is_not_in_memory_is_counted_below():
    y, text = region_of(lambda x: {"x": x, "part": x[:, :3]})
    assert text.splitlines()[0] == "layer: 0 B resident in 0 storages"
    assert "+ 2 saves rebuilt on recompute" in text

    def offloaded(x):
        return remat.native_op(torch.exp, "exp", remat.CheckpointPolicy.OFFLOAD)(x.sin()).cos()

    y = remat.checkpoint(region_name="layer", offload_store=remat.host_memory_store())(offloaded)(leaf(3))
    text = remat.format_saved_tensors_report()
    assert re.search(r"\+ \d tensors? offloaded", text), text
    with remat.saved_tensors_hooks(lambda t: t.numpy().copy(), torch.from_numpy):
        z, text = region_of(lambda x: {"power": x.exp()})
    assert "+ 1 tensor kept by hooks or by a region around this one" in text
    assert y.requires_grad and z.requires_grad


def test_125_a_call_whose_graph_was_dropped_is_flagged():
    seen = []

    def fn(x):
        y = save(lambda x: Names.apply(x, lambda x: {"power": x.exp()}), "gone")(x.sin())
        del y
        seen.append(remat.format_current_memory_report())
        return x.exp()

    remat.checkpoint(region_name="layer")(fn)(leaf(3))
    assert seen[0].splitlines()[0] == "layer: 0 B resident in 0 storages"
    assert "! gone: its graph was dropped, so what it kept is already released" in seen[0]


def test_126_names_follow_the_tensor():
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            # "none" is no tensor to keep, and "x" is an argument
            remat.save_for_backward(ctx, {"none": None, "x": x, "power": x.exp()[:, :2].clone()})
            return x * w

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    seen = []

    def fn(x):
        y = save(lambda x: Saves.apply(x, 2.0), "op")(x.sin())
        seen.append(remat.format_current_memory_report())
        return y

    y = checkpointed(fn)(leaf(2, 3))
    assert re.search(r"16 B  power +\[2, 2\]", seen[0]) and "x " not in seen[0]
    assert y.requires_grad


def test_127_what_save_for_backward_takes():
    class Ctx:
        def save_for_backward(self, *tensors):
            self.saved = tensors

    ctx, x = Ctx(), torch.ones(2)
    remat.save_for_backward(ctx, {"x": x, "none": None})
    assert ctx.saved[0] is x and ctx.saved[1] is None
    with pytest.raises(ValueError, match="must be non-empty"):
        remat.save_for_backward(ctx, {"": x})
    with pytest.raises(RuntimeError, match="dot"):
        remat.save_for_backward(ctx, {"a.b": x})
    with pytest.raises(RuntimeError, match="Tensor or None"):
        remat.save_for_backward(ctx, {"a": 3})


def block(recomputed=False):
    def fn(x):
        y = save(Saving.apply, "op")(x.sin())
        return recompute(torch.cos, "cos")(y) if recomputed else y

    return fn


def test_128_regions_that_hold_alike_are_one_line(capsys):
    x, outs = leaf(3), []
    for i in (10, 0, 1, 2, 9, 4):
        outs.append(remat.checkpoint(region_name=f"layer.{i}")(block(i == 4))(x))
    text = remat.format_saved_tensors_report()
    assert text.splitlines()[0] == "saved for backward: 84 B resident, 84 B of them in 6 regions"
    assert re.search(r"^  12 B  x5  layer\.0-2, layer\.9-10  \(1 storage each\)$", text, re.MULTILINE)
    assert re.search(r"^  24 B      layer\.4 +\(2 storages\)$", text, re.MULTILINE)
    assert "outside of regions: not walked" in text
    assert "\n[x5: layer.0-2, layer.9-10]\nlayer.0: 12 B resident in 1 storage\nlayer.0::op: 12 B\n" in text
    loss = sum(out.sum() for out in outs).tanh()
    for roots in (loss, [loss], iter([loss])):
        text = remat.format_saved_tensors_report(roots)
        assert re.search(r"outside of regions: 4 B in 1 storage\n +4 B  TanhBackward0 \(x1\)$", text, re.MULTILINE)
    remat.print_saved_tensors_report(loss)
    assert capsys.readouterr().out == text + "\n"
    with pytest.raises(TypeError, match="roots: expected a Tensor"):
        remat.format_saved_tensors_report([3])


def test_129_each_storage_is_billed_once():
    shared = torch.ones(5, 5)

    def fn(x):
        return save(lambda x: Names.apply(x, lambda x: {"own": x.exp(), "shared": shared}), "op")(x.sin())

    x = leaf(3)
    outs = [remat.checkpoint(region_name=f"layer.{i}")(fn)(x) for i in (1, 0)]
    loss = sum((out * shared.sum()).sum() for out in outs) + (x * shared[0, :3]).exp().sum()
    text = remat.format_saved_tensors_report(loss)
    whole, inside, outside = map(int, re.match(
        r"saved for backward: (\d+) B resident, (\d+) B of them in 2 regions and (\d+) B outside", text).groups())
    assert inside == 12 + 12 + 100 and whole == inside + outside
    assert re.search(r"112 B +layer\.0 ", text) and re.search(r" 12 B +layer\.1 ", text)
    # Outside are exp's result and the two sums that the products save; shared memory is billed to layer.0.
    assert outside == 12 + 4 + 4
    assert bytes_in(text.split("region detail:")[0], r"^ +(\d+) B  \w+Backward0")


def test_130_nothing_is_unpacked_and_parameters_do_not_count():
    model = torch.nn.Linear(4, 4)
    unpacked = []

    def unpack(tensor):
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = model(leaf(2, 4)).exp()
    loss = (model(y.detach()).tanh() @ model.weight.t()).sum()
    y = remat.checkpoint(region_name="layer")(lambda x: save(model, "op")(x.sin()))(leaf(2, 4))
    runs = []
    z = checkpointed(lambda x: [runs.append(1), x.sin().exp()][1])(leaf(4))
    text = remat.format_saved_tensors_report([loss + y.sum() + z.sum()])
    assert unpacked == [] and runs == [1]
    # Outside are tanh's result and the detached input of the second call.
    assert re.search(r"outside of regions: 64 B in 2 storages", text), text
    assert re.search(r"layer: 0 B resident in 0 storages", text), text


def test_131_the_walk_sees_through_regions():
    x = leaf(3)
    before = x.exp()
    y = checkpointed(lambda x: x.sin().cos())(before)
    text = remat.format_saved_tensors_report(y.tanh().sum())
    assert "TanhBackward0" in text.split("region detail")[0]
    # exp's result is also the region's argument, so the region holds it.
    assert re.search(r"block: 12 B resident in 1 storage\n.*for the replay.*\n +12 B  argument 0 +\[3\]", text)
    y = checkpointed(lambda x: x.sin().cos())(x.exp() * 2)
    assert "ExpBackward0" in remat.format_saved_tensors_report(y)


def test_132_freed_graphs_are_survived():
    x = leaf(3)
    kept = Saving.apply(x, "internal")
    freed = Saving.apply(x, "output")
    freed.sum().backward()
    z = Saving.apply(freed.detach().requires_grad_(), "input")
    text = remat.format_saved_tensors_report([freed, kept, z])
    assert re.search(r"SavingBackward \(x\d\)", text), text
    assert re.match(r"saved for backward: 12 B resident", text), text  # z saves a leaf that requires grad
