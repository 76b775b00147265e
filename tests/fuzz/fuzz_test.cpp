// SPDX-License-Identifier: BSD-3-Clause

// Random programs give the same bits with and without remat.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "fuzz/program.h"
#include "fuzz/shrink.h"
#include "support/catch.h"
#include "support/same_bits.h"

namespace {

using remat::fuzz::make_program;
using remat::fuzz::Mode;
using remat::fuzz::Outcome;
using remat::fuzz::Program;
using remat::fuzz::run;
using remat::fuzz::shrink;
using remat::fuzz::to_string;
using remat::fuzz::Use;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

bool same(const Outcome& a, const Outcome& b) {
  if (a.error != b.error) return false;
  // Where both raise, only how far the forward got is comparable: a replay may raise before an op
  // that plain has run.
  if (a.error) return true;
  if (a.tensors.size() != b.tensors.size()) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (!same_bits(a.tensors[i], b.tensors[i])) return false;
  }
  return true;
}

/// Empty if the program gives the same both ways, or is refused; else how it differs.
std::string difference(const Outcome& plain, const Outcome& ours) {
  if (ours.refused || same(plain, ours)) return {};
  return "plain: " + plain.error.value_or("ran") + "\nours:  " + ours.error.value_or("ran");
}

std::string shrunk(const Program& program, Use use, uint64_t seed, const std::string& failure) {
  const Program small = shrink(program, [&](const Program& smaller) {
    return difference(run(smaller, Mode::kPlain, use, seed),
                      run(smaller, Mode::kCheckpointed, use, seed)) == failure;
  });
  return to_string(small.body);
}

/// Regions that no tape can be written of say so, once each.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

TEST_CASE("Random programs give the same bits with and without remat", "[fuzz]") {
  const uint64_t count = from_environment("REMAT_FUZZ_N", 20000);
  const uint64_t first = from_environment("REMAT_FUZZ_SHARD", 0) * count;
  std::cout << "seeds " << first << " to " << first + count - 1 << std::endl;
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  uint64_t raised = 0;
  uint64_t refused = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = make_program(random);
    const Use use = static_cast<Use>(random() % static_cast<uint64_t>(Use::kCount));
    if (count == 1) std::cout << "use " << static_cast<int>(use) << "\n" << to_string(program.body);
    const Outcome plain = run(program, Mode::kPlain, use, seed);
    const Outcome ours = run(program, Mode::kCheckpointed, use, seed);
    raised += plain.error.has_value();
    refused += ours.refused;
    const std::string failure = difference(plain, ours);
    if (failure.empty()) continue;
    FAIL_CHECK("seed " << seed << ", use " << static_cast<int>(use) << "\n"
                       << failure << "\n"
                       << ours.message << "\n"
                       << shrunk(program, use, seed, failure));
  }
  std::cout << count << " programs, both raise in " << raised << ", refused " << refused
            << std::endl;
  CHECK(raised <= count / 2);  // else the programs say little
  CHECK(refused <= count / 20);
}

}  // namespace
