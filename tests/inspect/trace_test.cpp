// SPDX-License-Identifier: BSD-3-Clause

// The lines of a trace.
#include <torch/torch.h>

#include <sstream>
#include <string>

#include <remat/remat.h>

#include "support/catch.h"

namespace remat {

TEST_CASE("A trace has a line for each op and named call", "[inspect][trace]") {
  std::ostringstream out;
  {
    const Trace trace(out);
    const at::Tensor x = torch::ones({2, 2}).requires_grad_();
    const at::Tensor w = torch::ones({2, 2}).requires_grad_();
    const at::Tensor y = checkpoint({.name = "block"})([&](const at::Tensor& in) {
      const at::Tensor h =
          native_op([&](const at::Tensor& t) { return t.mm(w); }, "mm", Policy::kSave)(in.sin());
      return (h + 1).exp();
    })(x);
    y.sum().backward();
  }
  const std::string keys = " DispatchKeySet(CPU, ADInplaceOrView, AutogradCPU, AutocastCPU)";
  const std::string t = "float32 [2, 2] on cpu requires grad";
  CHECK(out.str() == "forward region 'block': aten::sin(" + t + ")" + keys + "; slot 0 dropped\n" +
                         "forward region 'block': call 'mm' (SAVE) begins\n" +
                         "forward region 'block': aten::mm(" + t + ", " + t + ")" + keys +
                         "; in a SAVE call; slot 1 left to the call's arguments; tensor 0 kept\n" +
                         "forward region 'block': aten::add.Scalar(" + t + ", 1, 1)" + keys + "\n" +
                         "forward region 'block': aten::exp(" + t + ")" + keys +
                         "; slot 2 dropped\n" + "replay region 'block': aten::sin(" + t + ")" +
                         keys + "; slot 0 filled\n" +
                         "replay region 'block': call 'mm' (SAVE) is left out; slot 1 filled\n" +
                         "replay region 'block': aten::add.Scalar(" + t + ", 1, 1)" + keys + "\n" +
                         "replay region 'block': aten::exp(" + t + ")" + keys +
                         "; slot 2 filled\n" + "replay region 'block': stops\n");
}

TEST_CASE("Regions inside regions are indented, and nothing is written without a region",
          "[inspect][trace]") {
  std::ostringstream out;
  const Trace trace(out);
  CHECK_THROWS_AS(Trace(out), c10::Error);
  const at::Tensor x = torch::ones({2}).requires_grad_();
  CHECK(x.sin().requires_grad());
  CHECK(out.str().empty());
  checkpoint({.name = "outer"})([](const at::Tensor& a) {
    return checkpoint({.name = "inner"})([](const at::Tensor& b) { return b.sin(); })(a.cos());
  })(x)
      .sum()
      .backward();
  CHECK_THAT(out.str(), ContainsSubstring("\n  forward region 'inner': aten::sin("));
  CHECK_THAT(out.str(), ContainsSubstring("\nreplay region 'outer': aten::cos("));
  CHECK_THAT(out.str(), ContainsSubstring("\nreplay region 'inner': aten::sin("));
}

}  // namespace remat
