// SPDX-License-Identifier: BSD-3-Clause

// A process where PrivateUse1 is somebody else's.
#include <remat/backend/register_device.h>

#include "support/catch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <remat/backend/checkpoint.h>
#include <torch/torch.h>

namespace {

TEST_CASE("A device that somebody else has named stays theirs", "[device]") {
  c10::register_privateuse1_backend("npu");
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH(remat::register_device(),
                      ContainsSubstring("[register_device] PrivateUse1: expected it unused, got "
                                        "the device name 'npu' on it") &&
                          ContainsSubstring("leave the other library out"));
  }
  CHECK(c10::get_privateuse1_backend() == "npu");
  CHECK_FALSE(c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1));
  const at::Tensor x = torch::ones({3}).requires_grad_();
  remat::checkpoint()([](const at::Tensor& t) { return t.sin(); })(x).sum().backward();
  CHECK(x.grad().defined());
}

}  // namespace
