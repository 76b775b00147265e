// SPDX-License-Identifier: BSD-3-Clause

// Unusual names of regions and calls: a trace still has one line for each op and call.
#include <torch/torch.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"

namespace remat {
namespace {

std::vector<std::string> trace_lines(const std::string& region, const std::string& call) {
  std::ostringstream out;
  {
    const Trace trace(out);
    const auto exp = [](const at::Tensor& t) { return t.exp(); };
    const at::Tensor x = torch::ones({2, 2}).requires_grad_();
    checkpoint({.name = region})([&](const at::Tensor& t) {
      const NameScope scope(call);
      return checkpoint({.name = region})(native_op(exp, call, Policy::kSave))(t.sin()).cos();
    })(x)
        .sum()
        .backward();
  }
  std::vector<std::string> lines;
  std::istringstream text(out.str());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// True for "forward region ...", indented, without characters that move a terminal's cursor.
bool is_one_line(const std::string& line) {
  const std::string text = line.substr(std::min(line.find_first_not_of(' '), line.size()));
  return (text.starts_with("forward ") || text.starts_with("replay ")) &&
         std::none_of(text.begin(), text.end(),
                      [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

}  // namespace

TEST_CASE("A trace has the same lines whatever the names are", "[inspect][trace]") {
  const std::vector<std::string> plain = trace_lines("block", "exp");
  REQUIRE(plain.size() > 8);
  const std::string name =
      GENERATE(std::string("a'b\"c\\d"), std::string("a\nforward region 'forged': stops"),
               std::string("a\r\nb\tc\x1b[2J\x7f"), std::string("\xff\xfe\x80"),
               std::string("a\0b", 3), std::string("{}%s%n"), std::string(1'000'000, 'a'));
  CAPTURE(name.substr(0, 40));
  const std::vector<std::string> lines = trace_lines(name, name);
  CHECK(lines.size() == plain.size());
  CHECK(std::all_of(lines.begin(), lines.end(), is_one_line));
}

}  // namespace remat
