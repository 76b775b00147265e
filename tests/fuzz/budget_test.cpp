// SPDX-License-Identifier: BSD-3-Clause

// Random programs run within random budgets, with the bits of a plain run.
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "fuzz/budget.h"
#include "fuzz/child.h"
#include "fuzz/plain_step.h"
#include "fuzz/print.h"
#include "fuzz/shrink.h"
#include "support/catch.h"

namespace {

using namespace remat::fuzz;

constexpr uint64_t kMostShrunkInBudgets = 5;

Verdict checked_in_budget(const Program& program) {
  return check_in_budget(program);
}

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Prints the smallest program found that fails in the same way.
void print_shrunk_step(uint64_t seed, const std::string& failure) {
  const Program small = shrink(plain_step_of(make_program(seed)), [&](const Program& smaller) {
    return check_in_child(smaller, checked_in_budget).failure == failure;
  });
  std::cout << "seed " << seed << "\n"
            << failure << "\n"
            << check_in_child(small, checked_in_budget).message
            << "\nof a budget; the step that is planned is:\n\n"
            << text_of_child([&] { return to_cpp(small); }) << std::endl;
}

TEST_CASE("Random programs run within random budgets with the bits of plain", "[fuzz]") {
  const uint64_t count = number_from_environment("REMAT_FUZZ_N", 20000);
  const uint64_t first = number_from_environment("REMAT_FUZZ_SHARD", 0) * count;
  const uint64_t most_shrunk = number_from_environment("REMAT_FUZZ_SHRINK", kMostShrunkInBudgets);
  at::set_num_threads(1);  // a fork has none of OpenMP's threads, and would wait for them
  std::cout << "seeds " << first << " to " << first + count - 1 << std::endl;
  std::map<std::string, std::vector<uint64_t>> notes;
  uint64_t planned = 0;
  uint64_t failed = 0;
  check_in_children(first, count, checked_in_budget, [&](uint64_t seed, const Verdict& verdict) {
    planned += is_planned(verdict.note);
    if (verdict.note) notes[verdict.note].push_back(seed);
    if (verdict.failure.empty()) return;
    FAIL_CHECK("seed " << seed << "\n" << verdict.failure << "\n" << verdict.message);
    if (failed++ < most_shrunk) print_shrunk_step(seed, verdict.failure);
  });
  std::cout << count << " programs, " << planned << " run by plans" << std::endl;
  for (const auto& [note, seeds] : notes)
    std::cout << seeds.size() << ": " << note << " (" << seeds.front() << ")" << std::endl;
  CHECK(planned >= count / 2);
}

TEST_CASE("Random budgets find a step that draws other numbers") {
  uint64_t found = 0;
  for (uint64_t seed = 0; seed < 100; ++seed)
    found += check_in_budget(make_program(seed), Fault::kNumbers).failure == "differs";
  CHECK(found > 0);
}

TEST_CASE("Random budgets find a peak above the prediction") {
  uint64_t found = 0;
  for (uint64_t seed = 0; seed < 100; ++seed)
    found += check_in_budget(make_program(seed), Fault::kPeak).failure ==
             "the peak is above the prediction";
  CHECK(found > 0);
}

}  // namespace
