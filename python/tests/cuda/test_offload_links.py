# SPDX-License-Identifier: BSD-3-Clause

"""Links of a set speed copy memory of the CPU: on tensors of a GPU they refuse, in the forward."""

import pytest
import torch

import remat_meta as remat
from remat_meta import _C

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU or the stand-in")

OFFLOAD = remat.CheckpointPolicy.OFFLOAD


def simulated(kind, directory, device=None):
    return _C._offload_engine([(kind, None, str(directory), False)], 0, None, 1 << 20, None, device, False, (2.0, 100.0))


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("replay", ["function", "tape"])
def test_a_simulated_link_refuses_tensors_of_a_gpu_in_the_forward(kind, replay, tmp_path):
    store = simulated(kind, tmp_path)
    fn = remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store, replay=replay)(lambda x: x.sin().cos().sin())
    with pytest.raises(NotImplementedError, match=r"\[sim_link\] device: expected memory of the CPU, got cuda:0"):
        fn(torch.ones(1000, device="cuda", requires_grad=True))
    with pytest.raises(NotImplementedError, match=r"\[sim_link\] device: expected memory of the CPU, got cuda:0"):
        store.terms("cuda:0")
    x = torch.ones(1000, requires_grad=True)  # The store is as good as new.
    fn(x).sum().backward()
    plain = torch.ones(1000, requires_grad=True)
    plain.sin().cos().sin().sum().backward()
    assert torch.equal(x.grad, plain.grad)


def test_a_simulated_link_for_the_cpu_leaves_tensors_of_a_gpu_where_they_are(tmp_path):
    store = simulated("host", tmp_path, torch.device("cpu"))
    fn = remat.checkpoint(policy=lambda *_: OFFLOAD, offload_store=store)(lambda x: x.sin().cos().sin())
    x = torch.ones(1000, device="cuda", requires_grad=True)
    fn(x).sum().backward()
    assert x.grad is not None and store.stats()["left_count"] == 0
