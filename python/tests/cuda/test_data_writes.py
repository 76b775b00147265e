# SPDX-License-Identifier: BSD-3-Clause

"""Writes through `.data` on a GPU: checks cost nothing until `.data` is used; writes that are not noticed are limits
(docs/reference/limits.md)."""

import pytest
import torch

import remat_meta as remat

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")

SAVE, OFFLOAD = remat.CheckpointPolicy.SAVE, remat.CheckpointPolicy.OFFLOAD
CHANGED = r"region 'results'.*(got a region's result that was written by way of another tensor|got other memory)"
OTHER_VALUES = "expected the values that the forward saved"


def leaf(*shape):
    return torch.randn(*shape, device="cuda", requires_grad=True)


def write_data(y):
    y.data.mul_(2)


def write_data_of_a_part(y):
    y[0].data.mul_(2)


def write_data_that_is_held(y):
    data, y = y.data, None
    data.mul_(2)
    return data


def multiply_data_as_python_does(y):
    y.data *= 2


def exchange_data(y):
    y.data = torch.zeros_like(y)


def results(x):
    y = x.mul(2).sin()
    return y, (y * 2).exp(), y.cos()


@pytest.mark.parametrize("policy", [None, SAVE, OFFLOAD], ids=["none", "save", "offload"])
@pytest.mark.parametrize("replay", ["function", "tape", "auto"])
@pytest.mark.parametrize(
    "write", [write_data, write_data_of_a_part, write_data_that_is_held, multiply_data_as_python_does, exchange_data]
)
def test_a_result_that_is_written_by_way_of_data_after_the_region_raises_in_backward(write, replay, policy):
    def fn(x):
        h = x * 2
        y = remat.native_op(torch.sin, "sin", policy)(h) if policy else h.sin()
        return y, (y * 2).exp(), y.cos()

    region = remat.checkpoint(region_name="results", replay=replay, offload_store=remat.host_memory_store())(fn)
    y, *others = region(leaf(4, 4))
    data = write(y)
    with pytest.raises(RuntimeError, match=CHANGED):
        sum(other.sum() for other in others).backward()
    del data


@pytest.mark.parametrize("shape", [(3 << 20,), (1024, 3, 1024)], ids=str)
def test_of_a_large_result_some_elements_are_compared(shape):
    """At most 1 MiB is copied to the host: here every fourth element, or every fourth row of every fourth element."""

    def run(write):
        y, *others = remat.checkpoint(region_name="results")(results)(leaf(*shape))
        write(y)
        sum(other.sum() for other in others).backward()

    before = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError, match=CHANGED):
        run(write_data)
    with pytest.raises(RuntimeError, match=CHANGED):
        run(lambda y: y.data.view(-1)[:1].mul_(2))
    run(lambda y: y.data.view(-1)[1:2].mul_(2))  # S46: unnoticed
    run(lambda y: y.data.sum())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_data_may_be_asked_for_while_another_stream_computes_the_result(replay):
    side = torch.cuda.Stream()
    for _ in range(3):
        grads = []
        for wrap in (remat.checkpoint(region_name="results", replay=replay), lambda fn: fn):
            torch.manual_seed(1)
            x = leaf(1 << 16)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y, *others = wrap(results)(x)
            data = y.data  # the side stream may not have computed y yet
            torch.cuda.current_stream().wait_stream(side)
            sum(other.sum() for other in others).backward()
            torch.cuda.synchronize()
            grads.append((x.grad.cpu(), data.cpu()))
        assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


@pytest.mark.parametrize("replay", ["function", "tape"])
def test_programs_without_data_do_not_wait_for_the_device(replay):
    """The second step copies nothing to the host. (The first replay of a tape is compared.)"""
    region = remat.checkpoint(region_name="no data", replay=replay)(results)
    weight = leaf(1000)

    def step():
        _, *others = region(weight * 2)
        sum(other.sum() for other in others).backward()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        step()
    names = [event.name for event in profile.events()]
    assert "aten::exp" in names and not {"aten::_local_scalar_dense", "aten::_to_copy", "aten::copy_"} & set(names)


def of_memory_from_outside(replay):
    w, x = torch.ones(4, device="cuda"), leaf(4)
    y = remat.checkpoint(region_name=f"outside {replay}", replay=replay)(lambda x: (x * w.exp()).sin())(x)
    w.data.mul_(2)
    y.sum().backward()
    return x


def test_s4_memory_from_outside_is_not_compared():
    x = of_memory_from_outside("function")
    scale = torch.full((4,), 2.0, device="cuda").exp()
    assert torch.equal(x.grad, (x.detach() * scale).cos() * scale)  # silently the gradient of the new values
    with pytest.raises(RuntimeError, match=OTHER_VALUES):
        of_memory_from_outside("tape")


def test_what_batch_norm_writes_in_another_region_is_right():
    def grads(wrap):
        torch.manual_seed(2)
        x, z, statistics = leaf(4, 4), leaf(4, 4), torch.ones(2, 4, device="cuda")
        y = wrap(lambda x: (x * (statistics[0] + 0.5)).sin())(x)
        y = y * wrap(lambda z: torch.nn.functional.batch_norm(z, *statistics, training=True))(z)
        (y * y).sum().backward()
        return x.grad, z.grad, statistics

    for ours, plain in zip(grads(remat.checkpoint()), grads(lambda fn: fn), strict=True):
        assert torch.equal(ours, plain)


def test_values_of_the_host_that_an_op_copies_to_the_gpu_are_compared():
    factor, x = [2.0], leaf(4)
    y = remat.checkpoint(region_name="host values")(lambda x: (x * torch.tensor(factor, device="cuda")).sin())(x)
    factor[0] = 3.0
    with pytest.raises(remat.ReplayMismatch, match="A number differs"):
        y.sum().backward()


def test_s9_memory_of_another_library_is_not_compared():
    factor, x = torch.full((4,), 2.0, device="cuda"), leaf(4)
    theirs = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(factor))
    y = remat.checkpoint(region_name="theirs")(lambda x: (x * theirs).sin())(x)
    factor.fill_(3)
    y.sum().backward()
    assert torch.equal(x.grad, (x.detach() * 3).cos() * 3)


@torch.library.custom_op("remat_cuda_tests::double_in_secret", mutates_args=())
def double_in_secret(x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x.clone()


def test_s16_unmarked_writes_of_a_library_are_not_noticed():
    buffer, x = torch.ones(4, device="cuda"), leaf(4)
    y = remat.checkpoint(region_name="library")(lambda x: (x * double_in_secret(buffer)).sin())(x)
    y.sum().backward()
    assert torch.equal(buffer.cpu(), torch.full((4,), 4.0))  # silently written twice


@pytest.mark.parametrize("policy", [None, ["*"]], ids=["none", "all"])
def test_s3_what_hooks_have_copied_is_not_compared(policy):
    w, x = leaf(4), leaf(4)
    copies = (lambda tensor: tensor.clone(), lambda tensor: tensor)
    old = w.detach().clone()
    y = remat.checkpoint(policy=policy, saved_tensors_hooks=copies, region_name="copies")(lambda x: w.sin() * x)(x)
    w.data.mul_(2)
    y.sum().backward()
    assert torch.equal(x.grad, (old if policy else w.detach()).sin())


def test_m15_memory_of_others_is_used_as_it_is():
    def grads(wrap):
        torch.manual_seed(2)
        x, kept = leaf(4), []
        y = wrap(lambda x: (kept.append(h := x.sin()), h.exp() * h)[1])(x)
        theirs = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(kept[0].detach()))
        theirs.mul_(2)  # without a new version of `h`
        y.sum().backward()
        return x.grad.cpu()

    assert torch.equal(grads(lambda fn: fn), grads(remat.checkpoint(region_name="others")))
