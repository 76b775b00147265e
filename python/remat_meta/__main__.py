# SPDX-License-Identifier: BSD-3-Clause

"""python -m remat_meta: versions, the state of the device, a self-test."""

import platform
import sys

import torch

import remat_meta as remat
from remat_meta._build_info import TORCH_VERSION


def device_state() -> str:
    """Who has torch's one free device."""
    name = torch._C._get_privateuse1_backend_name()
    if name == "remat_meta":
        return "remat_meta is registered"
    if name != "privateuseone":
        return f"taken by {name!r}: register_device() will refuse, checkpoints work"
    return "free: register_device() makes it remat_meta"


def self_test() -> str:
    """Trains one step plainly and checkpointed; raises AssertionError if a bit differs."""

    def grads(wrap):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Dropout(0.5)
        )
        x = torch.randn(4, 8, requires_grad=True)
        wrap(model)(x).sin().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]

    plain = grads(lambda model: model)
    for expected, got in zip(plain, grads(remat.checkpoint(region_name="self-test")), strict=True):
        assert torch.equal(expected, got), "a checkpointed step differs from a plain one"
    return f"passed: {len(plain)} gradients and buffers bitwise equal to plain"


def main() -> int:
    print(f"remat_meta {remat.__version__}, compiled for torch {TORCH_VERSION}")
    print(f"torch      {torch.__version__} in {torch.__path__[0]}")
    print(f"python     {platform.python_version()} in {sys.prefix}")
    print(f"device     {device_state()}")
    try:
        print(f"self-test  {self_test()}")
    except Exception as error:
        print(f"self-test  failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
