// SPDX-License-Identifier: BSD-3-Clause

// register_device() in a process where another backend owns PrivateUse1.
#include <remat/backend/register_device.h>

#include "support/catch.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <remat/backend/checkpoint.h>
#include <torch/library.h>
#include <torch/torch.h>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

TEST_CASE("A fallback, a kernel and a device guard of others are named", "[device]") {
  {
    torch::Library theirs(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, "their.cpp", 7);
    theirs.fallback(torch::CppFunction::makeFallthrough());
    CHECK_THROWS_WITH(remat::register_device(),
                      ContainsSubstring("[remat] PrivateUse1: expected no backend fallback") &&
                          ContainsSubstring("their.cpp:7"));
  }
  {
    torch::Library theirs(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, "their.cpp",
                          8);
    theirs.impl("empty.memory_format", torch::CppFunction::makeFallthrough());
    CHECK_THROWS_WITH(
        remat::register_device(),
        ContainsSubstring("got this kernel for aten::empty") && ContainsSubstring("their.cpp:8"));
  }
  const c10::impl::NoOpDeviceGuardImpl<kDevice> guard;
  c10::impl::registerDeviceGuard(kDevice, &guard);
  CHECK_THROWS_WITH(
      remat::register_device(),
      ContainsSubstring("got a device guard of class c10::impl::NoOpDeviceGuardImpl"));
  c10::impl::registerDeviceGuard(kDevice, nullptr);
  CHECK_FALSE(c10::is_privateuse1_backend_registered());
}

TEST_CASE("A device that somebody else has named stays theirs", "[device]") {
  c10::register_privateuse1_backend("npu");
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH(remat::register_device(),
                      ContainsSubstring("[register_device] PrivateUse1: expected it unused, got "
                                        "the device name 'npu' on it") &&
                          ContainsSubstring("leave the other library out"));
  }
  CHECK(c10::get_privateuse1_backend() == "npu");
  CHECK_FALSE(c10::impl::hasDeviceGuardImpl(kDevice));
  const at::Tensor x = torch::ones({3}).requires_grad_();
  remat::checkpoint()([](const at::Tensor& t) { return t.sin(); })(x).sum().backward();
  CHECK(x.grad().defined());
}

}  // namespace
