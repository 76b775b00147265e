// SPDX-License-Identifier: BSD-3-Clause

// Random programs give the same bits with and without remat.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "fuzz/child.h"
#include "fuzz/print.h"
#include "fuzz/program.h"
#include "fuzz/run.h"
#include "fuzz/shrink.h"
#include "fuzz/words.h"
#include "support/catch.h"

namespace {

using namespace remat::fuzz;
using remat::Keep;
using remat::Policy;

Verdict checked(const Program& program) {
  return check(program);
}

constexpr uint64_t kMostShrunk = 5;  // shrinking takes a minute for each

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::string printed(const Program& program) {
  return text_of_child([&] { return to_cpp(program) + "\n" + to_python(program); });
}

/// Prints the smallest program found that fails in the same way, in C++ and Python. It goes
/// directly to std::cout, since Catch would break its lines.
void print_shrunk(const Program& program, const std::string& failure) {
  const Program small = shrink(program, [&](const Program& smaller) {
    return check_in_child(smaller, checked).failure == failure;
  });
  std::cout << "seed " << program.seed << "\n"
            << failure << "\n"
            << check_in_child(small, checked).message << "\n\n"
            << printed(small) << std::endl;
}

TEST_CASE("Random programs give the same bits with and without remat", "[fuzz]") {
  const uint64_t count = from_environment("REMAT_FUZZ_N", 20000);
  const uint64_t first = from_environment("REMAT_FUZZ_SHARD", 0) * count;
  at::set_num_threads(1);  // a fork has none of OpenMP's threads, and would wait for them
  const uint64_t most_shrunk = from_environment("REMAT_FUZZ_SHRINK", kMostShrunk);
  std::cout << "seeds " << first << " to " << first + count - 1 << std::endl;
  uint64_t raised = 0;
  uint64_t refused = 0;
  uint64_t failed = 0;
  uint64_t races = 0;  // programs whose sums depend on the order of autograd's threads
  std::map<std::string, std::vector<uint64_t>> refusals;
  if (count == 1) std::cout << printed(make_program(first));
  check_in_children(first, count, checked, [&](uint64_t seed, const Verdict& verdict) {
    raised += verdict.raised;
    if (verdict.refusal) {
      ++refused;
      refusals[verdict.refusal].push_back(seed);
    }
    if (verdict.note) {
      ++races;
      refusals[verdict.note].push_back(seed);
    }
    if (verdict.failure.empty()) return;
    FAIL_CHECK("seed " << seed << "\n" << verdict.failure << "\n" << verdict.message);
    if (failed++ < most_shrunk) print_shrunk(make_program(seed), verdict.failure);
  });
  std::cout << count << " programs, both raise in " << raised << ", refused " << refused
            << ", plain code races in " << races << std::endl;
  for (const auto& [rule, seeds] : refusals)
    std::cout << seeds.size() << ": " << rule << " (" << seeds.front() << ")" << std::endl;
  CHECK(raised <= count / 20 + 1);  // more errors would mean that programs test little
  CHECK(refused <= count / 100 + 5);
  CHECK(races <= count / 100 + 1);
}

TEST_CASE("A program with everything in it gives the same bits with and without remat") {
  const Verdict verdict = check(program_of_everything());
  CHECK(verdict.failure == "");
  CHECK(verdict.message == "");
}

TEST_CASE("Random programs have everything in them") {
  std::set<Op> ops;
  std::set<Use> uses;
  std::set<Freed> freed;
  std::set<ScopeChoices::Kind> scopes;
  std::set<std::pair<Policy, Keep>> calls;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = make_program(seed);
    uses.insert(program.use);
    freed.insert(program.freed);
    any_step(program.body, [&](const Step& step) {
      if (!is_rare(step.op)) ops.insert(step.op);
      if (step.op == Op::kScope) scopes.insert(step.scope.kind);
      if (step.op == Op::kCall) calls.insert({step.call.policy, step.call.keep});
      return false;
    });
  }
  size_t expected = 3;  // at least regions, calls and scopes
  for (size_t i = 0; i < static_cast<size_t>(Op::kOpCount); ++i)
    expected += has_words(words_of(static_cast<Op>(i))) && !is_rare(static_cast<Op>(i));
  CHECK(ops.size() == expected);
  CHECK(uses.size() == static_cast<size_t>(Use::kCount));
  CHECK(freed.size() == (has_words(Words::kFreedStorages) ? 3 : 1));
  CHECK(scopes.size() == 3);
  CHECK(calls.size() == 6);
}

TEST_CASE("Random programs find an engine that draws other numbers") {
  uint64_t found = 0;
  for (uint64_t seed = 0; seed < 300; ++seed)
    found += !check(make_program(seed), remat::fuzz::Mode::kBroken).failure.empty();
  CHECK(found > 10);
}

TEST_CASE("A failing program is made small") {
  const auto fails = [](const Program& program) {
    return any_step(program.body, [](const Step& step) { return step.op == Op::kSoftmax; });
  };
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Program program = make_program(seed);
    if (!fails(program)) continue;
    const Program small = shrink(program, fails);
    CHECK(small.use == Use::kBackward);
    CHECK_FALSE(any_step(small.body, [](const Step& step) {
      return step.block.empty() ? step.op != Op::kSame && step.op != Op::kSoftmax
                                : step.op != Op::kScope;
    }));
  }
}

// For the tests of printed programs: REMAT_FUZZ_PRINT names a .cpp or .py file, REMAT_FUZZ_SEED the
// program's seed; without a seed it is the program with everything in it.
TEST_CASE("A program is printed to a file", "[.print]") {
  const char* const path = std::getenv("REMAT_FUZZ_PRINT");
  REQUIRE(path);
  const char* const seed = std::getenv("REMAT_FUZZ_SEED");
  const Program program =
      seed ? make_program(std::strtoull(seed, nullptr, 10)) : program_of_everything();
  std::ofstream(path) << (std::string(path).ends_with(".py") ? to_python(program)
                                                             : to_cpp(program));
}

}  // namespace
