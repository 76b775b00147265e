// SPDX-License-Identifier: BSD-3-Clause

// Regions in a process where another backend owns PrivateUse1.
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceType.h>
#include <torch/torch.h>

#include <cstdlib>

#include "support/same_bits.h"
#include "support/unwound.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;

// In every backward, LibTorch calls the hooks of the backend that owns PrivateUse1.
struct ForeignHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return false; }
};

TEST_CASE("Regions see their ops beside another PrivateUse1 backend", "[backend][interception]") {
  static ForeignHooks hooks;
  c10::register_privateuse1_backend("foreign");
  at::RegisterPrivateUse1HooksInterface(&hooks);
  const Tensor x = torch::rand({3}).requires_grad_();
  const auto fn = [](const Tensor& t) { return t.sin(); };

  ::setenv("REMAT_DISPATCH_KEY", "PrivateUse2", 1);
  CHECK_THROWS_WITH(checkpoint()(fn)(x),
                    ContainsSubstring("[interception] REMAT_DISPATCH_KEY: expected PrivateUse1 or "
                                      "PrivateUse3, got PrivateUse2."));
  ::setenv("REMAT_DISPATCH_KEY", "PrivateUse1", 1);
  CHECK_THROWS_WITH(checkpoint()(fn)(x),
                    ContainsSubstring("expected that nobody has PrivateUse1, got the device "
                                      "'foreign', which does. Unset it."));
  ::unsetenv("REMAT_DISPATCH_KEY");

  Tensor c = torch::rand({3});
  const Tensor y =
      checkpoint({.name = "beside"})([c](const Tensor& t) { return (t + c).sin(); })(x);
  y.sum().backward({}, /*retain_graph=*/true);
  CHECK(same_bits(x.grad(), (x.detach() + c).cos()));
  c.add_(1);
  CHECK_THAT(error_text([&] { y.sum().backward(); }),
             ContainsSubstring("[replay] region 'beside', slot 0, op aten::add.Tensor"));
}

}  // namespace
