// SPDX-License-Identifier: BSD-3-Clause

// The state at a region's entry is read once, and kept as long as a replay may need it.
#include <remat/engine/region_entry.h>

#include "support/catch.h"

#include <remat/engine/region.h>
#include <torch/torch.h>

#include <any>
#include <memory>
#include <vector>

#include "support/error_text.h"

namespace remat {
namespace {

/// A counter that the user keeps.
class CounterHook final : public StateHook {
 public:
  explicit CounterHook(int& counter) : counter_(counter) {}
  std::any snapshot() override { return counter_; }
  void restore(const std::any& state) override { counter_ = std::any_cast<int>(state); }

 private:
  int& counter_;
};

}  // namespace

TEST_CASE("A tensor that is passed twice is held once", "[engine][replay]") {
  const at::Tensor a = torch::ones({2});
  const at::Tensor b = torch::ones({2});
  const RegionEntry entry({a, at::Tensor(), b, a}, {});
  REQUIRE(entry.inputs().size() == 4);
  CHECK(entry.first_position(0) == 0);
  CHECK(entry.first_position(2) == 2);
  CHECK(entry.first_position(3) == 0);
  CHECK(entry.inputs()[0].meta() != nullptr);
  CHECK(entry.inputs()[1].meta() == nullptr);
  CHECK(entry.inputs()[3].meta() == nullptr);
}

TEST_CASE("Generators are kept if the region has drawn from them", "[engine][replay]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  RegionEntry quiet({}, {});
  CHECK_FALSE(quiet.generators().empty());
  quiet.finish_forward(*region);
  CHECK(quiet.generators().empty());
  RegionEntry draws({}, {});
  torch::rand({1});
  draws.finish_forward(*region);
  CHECK(draws.generators().size() == 1);
}

TEST_CASE("Generators that the function put back are kept if its ops have drawn",
          "[engine][replay]") {
  const std::shared_ptr<Region> region = Region::make({.name = "r"});
  RegionEntry entry({}, {});
  region->mark_draws();
  entry.finish_forward(*region);
  CHECK_FALSE(entry.generators().empty());
}

TEST_CASE("No generator is kept if replays need none, and named ones are", "[engine][replay]") {
  RegionEntry::Options options;
  options.preserve_rng = false;
  CHECK(RegionEntry({}, options).generators().empty());
  const at::Generator named = at::make_generator<at::CPUGeneratorImpl>(uint64_t{3});
  const size_t usual = RegionEntry({}, {}).generators().size();
  options = {};
  options.generators = {named};
  CHECK(RegionEntry({}, options).generators().size() == usual + 1);
}

TEST_CASE("The user's state is that of the entry", "[engine][replay]") {
  int counter = 4;
  RegionEntry::Options options;
  options.state_hooks = {std::make_shared<CounterHook>(counter)};
  RegionEntry entry({}, options);
  counter = 5;
  REQUIRE(entry.user_states().size() == 1);
  entry.state_hooks()[0]->restore(entry.user_states()[0]);
  CHECK(counter == 4);
  entry.release_state();
  CHECK(entry.user_states().empty());
  CHECK(entry.state_hooks().empty());
  CHECK(entry.generators().empty());
}

TEST_CASE("An argument that the function wrote raises if nobody saw its ops", "[engine][replay]") {
  const bool intercept = GENERATE(false, true);
  const bool saves = GENERATE(false, true);
  const std::shared_ptr<Region> region = Region::make({.name = "r", .intercept = intercept});
  const at::Tensor argument = torch::ones({2});
  RegionEntry entry({argument}, {});
  if (saves) region->add_slot(torch::ones({1}));
  argument.add_(1);
  const bool raises = error_text([&] { entry.finish_forward(*region); }) != "no error";
  CHECK(raises == (saves && !intercept));
}

}  // namespace remat
