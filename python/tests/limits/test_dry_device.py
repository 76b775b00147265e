# SPDX-License-Identifier: BSD-3-Clause

"""The device remat_meta, whose registration is permanent."""

from .common import in_a_process


def test_r1_a_dry_graph_behind_a_real_output_has_no_device_thread():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        class Real(torch.autograd.Function):
            @staticmethod
            def forward(ctx, dry):
                return torch.ones(3)

            @staticmethod
            def backward(ctx, grad):
                return grad.to("remat_meta")

        torch.ones(2, requires_grad=True).sum().backward()
        remat.register_device()
        try:
            Real.apply(torch.ones(3, device="remat_meta", requires_grad=True) * 2).sum().backward()
        except RuntimeError as error:
            print(error)
    """, CUDA_VISIBLE_DEVICES="")
    assert "device_ready_queues_.size()" in printed


def test_r3_r4_statistics_have_the_dtype_of_the_input_and_meta_tensors_pass_unseen():
    printed = in_a_process("""
        import torch
        import remat_meta as remat

        remat.register_device()

        def statistics(device):
            x, w = torch.ones(2, 4, 3, 3, dtype=torch.bfloat16, device=device), torch.ones(4, device=device)
            return torch.ops.aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)[1]

        print(statistics("remat_meta").dtype, statistics("cpu").dtype)
        dry, meta = torch.ones(3, 3, device="remat_meta"), torch.ones(3, 3, device="meta")
        print(torch.bmm(dry[None], meta[None]).device)
        try:
            dry + meta
        except RuntimeError as error:
            print(error)
    """, CUDA_VISIBLE_DEVICES="")
    assert printed.splitlines()[:2] == ["torch.bfloat16 torch.float32", "meta"]
    assert "Tensor on device meta is not on the expected device remat_meta:0" in printed
