# SPDX-License-Identifier: BSD-3-Clause

"""A pytest plugin that runs a suite on CUDA tensors: pytest -p cuda_default.

Factories without a device argument make CUDA tensors, as after torch.set_default_device("cuda"), but without the mode
that this function enters, which would be a further mode in every test about modes. On the CUDA stand-in, the order of
streams changes from test to test, and a test fails if it launched kernels that nobody computed, or accessed invalid
memory. On a GPU the plugin only sets the default device.

cuda_left_out.py names the tests that are skipped.
"""

import os
import sys
import warnings
import zlib

import pytest
import stand_in
import torch
from cuda_left_out import reasons_for

ORDERS = ("eager", "lazy", "side-lazy", "side-eager", "random")


def pytest_configure(config):
    if all("/cuda/" in argument for argument in config.args):  # these tests name the device of their tensors
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in favour of the mode
        torch._C._set_default_tensor_type(torch.cuda.FloatTensor)
    torch.set_default_dtype(torch.float32)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if any("::" in argument for argument in config.args):
        return
    for item, reason in reasons_for(items, on_stand_in=stand_in.available()).items():
        item.add_marker(pytest.mark.skip(reason=reason))


def order_of(name):
    """Returns the order of streams for the test of that name, and the seed of random orders."""
    number = zlib.crc32(name.encode())
    return os.environ.get("CUDA_STAND_IN_ORDER") or ORDERS[number % len(ORDERS)], number % 1000


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    # Suites that are written for the CPU do not expect this warning of plans.
    warnings.filterwarnings("ignore", message=".*times are of the thread that launches")
    order, seed = order_of(item.nodeid)
    stand_in.order(order, seed)
    stand_in.reset()
    outcome = yield
    if outcome.excinfo is not None:
        item.add_report_section("call", "CUDA stand-in", f"order of streams: {order}, seed {seed}")
        return
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)  # work still in a stream belongs to this test
    garbage, faults = stand_in.garbage(), stand_in.faults()
    if garbage or faults:
        error = AssertionError(
            f"[CUDA stand-in] expected that the host computes every launch and that none faults, got {garbage} that "
            f"nobody computed and {faults} faults in the order {order}, seed {seed}. They are printed above."
        )
        outcome.force_exception(error)


exit_status = 0


def pytest_sessionfinish(exitstatus):
    global exit_status
    exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    # Without this exit, LibTorch may abort, without remat, too, when the interpreter ends while a device's thread still releases
    # Python objects.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_status)
