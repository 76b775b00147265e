// SPDX-License-Identifier: BSD-3-Clause

// A call of an op knows what it may do.
#include <remat/engine/op_call.h>

#include "support/catch.h"

#include <ATen/core/enum_tag.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "support/made_call.h"

namespace remat {
namespace {

bool may_draw_with(double dropout) {
  const at::Tensor q = torch::rand({1, 1, 2, 4});
  return MadeCall("aten::_scaled_dot_product_flash_attention_for_cpu", "",
                  {q, q, q, dropout, false, c10::IValue(), c10::IValue()})
      .get()
      .may_draw();
}

}  // namespace

TEST_CASE("An attention op without dropout draws nothing", "[engine][tensor]") {
  CHECK_FALSE(may_draw_with(0));
  CHECK(may_draw_with(0.5));
}

TEST_CASE("An op of a library may draw without dropout", "[engine][tensor]") {
  torch::Library library(torch::Library::DEF, "remat_test", std::nullopt, __FILE__, __LINE__);
  library.def("noise(Tensor x, float dropout_p) -> Tensor", {at::Tag::nondeterministic_seeded});
  CHECK(MadeCall("remat_test::noise", "", {torch::rand({4}), 0.0}).get().may_draw());
}

TEST_CASE("An op whose probability is no argument of attention may draw", "[engine][tensor]") {
  const at::Tensor x = torch::rand({4});
  CHECK(MadeCall("aten::native_dropout", "", {x, 0.0, true}).get().may_draw());
  CHECK_FALSE(MadeCall("aten::sin", "", {x}).get().may_draw());
}

}  // namespace remat
