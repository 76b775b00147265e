// SPDX-License-Identifier: BSD-3-Clause

// Lines of C++ in recordings. Compiled with debug information if libbacktrace is there to read
// it.
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>

#include <functional>
#include <map>
#include <string>

#include "inspect/recorded_program.h"
#include "support/catch.h"

namespace remat {
namespace {

constexpr int kLineOfOnes = __LINE__ + 3;

inline at::Tensor inlined(const at::Tensor& x) {
  return at::gelu(x.add(at::ones({8})), "tanh");
}

/// Calls exp through std::function, as a program may call its own functions.
at::Tensor called(const at::Tensor& x) {
  const std::function<at::Tensor(const at::Tensor&)> exp = [](const at::Tensor& y) {
    return y.exp();
  };
  return exp(inlined(x)).sum(/*dim=*/{-1}, /*keepdim=*/true, at::kDouble);
}

constexpr int kLineOfExp = kLineOfOnes + 6;

/// Returns the lines of ops that no other op has called, by name.
std::map<std::string, std::string> lines_of(const Recording& recording) {
  std::map<std::string, std::string> lines;
  for (const auto& op : recording.ops) {
    if (op.depth == 0) lines[recording.text(op.name)] = recording.text(op.line);
  }
  return lines;
}

}  // namespace

TEST_CASE("An op of C++ has the line of the program that calls it", "[inspect][recorder]") {
  const at::Tensor x = at::ones({4, 8});
  auto lines = lines_of(test::recording_of([&](Recorder&) { called(x); }, {.source_lines = true}));
#ifdef REMAT_HAS_BACKTRACE
  const auto is_at = [&](const std::string& op, int line, const std::string& function) {
    INFO(op << " is at " << lines[op]);
    CHECK(lines[op].find("source_lines_test.cpp:" + std::to_string(line) + " ") !=
          std::string::npos);
    CHECK(lines[op].find(function) != std::string::npos);
  };
  is_at("aten::ones", kLineOfOnes, "inlined");
  is_at("aten::gelu", kLineOfOnes, "inlined");
  is_at("aten::exp", kLineOfExp, "operator()");  // the lambda's line
  is_at("aten::sum.dim_IntList", kLineOfExp + 2, "called");
#else
  for (const auto& [op, line] : lines) CHECK(line.find("inspect.reports+0x") != std::string::npos);
#endif
}

}  // namespace remat
