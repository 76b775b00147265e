# SPDX-License-Identifier: BSD-3-Clause

"""register_device(): the device remat_meta, and its module in torch. In new processes, since registration is final."""

import pytest
from test_package import run_python

SETUP = """
import warnings; warnings.simplefilter("error")
import torch, remat_meta as remat
remat.register_device()
remat.register_device()
"""


def check(code):
    indent = "\n".join(line.strip("\n") for line in code.splitlines())
    import textwrap

    program = SETUP + textwrap.dedent(indent) + "\nprint('end')"
    assert run_python(program, CUDA_VISIBLE_DEVICES="").endswith("end\n")  # register_device() refuses where there is a GPU


def test_a_model_runs_without_memory():
    check("""
    with torch.device("remat_meta"):
        model = torch.nn.Sequential(torch.nn.Linear(1 << 20, 1 << 20), torch.nn.GELU())
        x = torch.randn(4, 1 << 20, requires_grad=True)
    model(x).sum().backward()
    assert x.grad.shape == x.shape and x.grad.device == torch.device("remat_meta:0")
    assert remat.is_placeholder(x.grad)
    try:
        x.grad.sum().item()
    except RuntimeError as error:
        assert "remat_meta" in str(error)
    else:
        raise AssertionError
    """)


def test_a_model_moves_to_the_device_and_not_back():
    check("""
    model = torch.nn.Linear(3, 3).to("remat_meta")
    assert model.weight.device.type == "remat_meta"
    try:
        model.cpu()
    except (RuntimeError, NotImplementedError) as error:
        assert "remat_meta" in str(error)
    else:
        raise AssertionError
    model.to_empty(device="cpu")
    """)


def test_autocast_takes_the_device():
    check("""
    with torch.device("remat_meta"), torch.autocast("remat_meta", dtype=torch.bfloat16):
        assert torch.nn.Linear(3, 3)(torch.randn(2, 3)).dtype == torch.bfloat16
    assert torch.amp.is_autocast_available("remat_meta")
    """)


def test_seeds_and_fork_rng_work():
    check("""
    torch.manual_seed(5)
    assert torch.remat_meta.initial_seed() == 5
    with torch.random.fork_rng(device_type="remat_meta"):
        torch.manual_seed(6)
    assert torch.remat_meta.get_rng_state().view(torch.int64).item() == 5
    """)


def test_torch_asks_for_the_accelerator_as_before():
    check("""
    assert torch.accelerator.is_available() == torch.cuda.is_available()
    if not torch.cuda.is_available():
        assert torch.accelerator.current_accelerator(check_available=True) is None
    torch.accelerator.synchronize()
    torch.remat_meta.synchronize()
    torch.remat_meta.current_stream().synchronize()
    with torch.remat_meta.stream(torch.remat_meta.current_stream()), torch.remat_meta.device(0):
        pass
    assert torch.remat_meta.device_count() >= 1
    """)


@pytest.mark.parametrize("pin", [False, True])
def test_data_loaders_work(pin):
    check(f"""
    from torch.utils.data import DataLoader, TensorDataset
    warnings.simplefilter("ignore")  # pin_memory without an accelerator, as before
    data = TensorDataset(torch.arange(8.0))
    got = [batch.sum().item() for (batch,) in DataLoader(data, batch_size=4, num_workers=1, pin_memory={pin})]
    assert got == [6.0, 22.0]
    """)


@pytest.mark.parametrize("reentrant", [False, True])
def test_torch_checkpoint_works(reentrant):
    check(f"""
    from torch.utils.checkpoint import checkpoint
    x = torch.randn(4, requires_grad=True)
    checkpoint(lambda x: torch.dropout(x, 0.5, True).sin(), x, use_reentrant={reentrant}).sum().backward()
    with torch.device("remat_meta"):
        d = torch.randn(4, requires_grad=True)
    checkpoint(torch.sin, d, use_reentrant={reentrant}).sum().backward()
    assert d.grad.shape == (4,)
    """)


def test_optimizers_and_regions_work():
    check("""
    for device in ("cpu", "remat_meta"):
        model = torch.nn.Linear(4, 4, device=device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            x = torch.randn(2, 4, device=device)
            remat.checkpoint()(lambda x: model(x).tanh())(x).sum().backward()
            optimizer.step()
    """)


def test_another_owner_of_the_device_is_named():
    text = run_python("""
    import torch, remat_meta as remat
    torch.utils.rename_privateuse1_backend("other")
    try:
        remat.register_device()
    except NotImplementedError as error:
        print(error)
    print(hasattr(torch, "remat_meta"))
    """)
    assert "the device name 'other' on it" in text and text.endswith("False\n")
