// SPDX-License-Identifier: BSD-3-Clause

// Functions within a budget whose plans offload the values that they keep.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/inspect/memory_meter.h>
#include <remat/offload/offload_engine.h>

#include "budget/collected_warnings.h"
#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/same_bits.h"

namespace remat {
namespace {

constexpr int64_t kWindow = int64_t{1} << 18;

/// Six layers whose results take long to compute for their size.
struct WideLayers {
  at::Tensor up = torch::linspace(-1, 1, 64 * 256).view({64, 256}).div(10).requires_grad_();
  at::Tensor down = torch::linspace(1, -1, 64 * 256).view({256, 64}).div(10).requires_grad_();

  at::Tensor operator()(at::Tensor x) const {
    for (int i = 0; i < 6; ++i) x = x + torch::gelu(x.mm(up)).mm(down).tanh();
    return x.square().mean();
  }

  /// Returns peak and gradients of one step.
  template <class Fn>
  std::pair<int64_t, std::vector<at::Tensor>> step(const Fn& fn) const {
    for (at::Tensor weight : {up, down}) weight.mutable_grad() = torch::zeros_like(weight);
    const at::Tensor x = torch::linspace(-1, 1, 1024 * 64).view({1024, 64});
    MemoryMeter meter;
    fn(x).backward();
    return {meter.peak_bytes(default_device()), {up.grad().clone(), down.grad().clone()}};
  }
};

/// An engine whose terms say that copies take no time, whatever the machine: plans move all they
/// can.
class FastEngine final : public OffloadEngine {
 public:
  explicit FastEngine(std::shared_ptr<OffloadEngine> engine) : engine_(std::move(engine)) {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override { return engine_->put(tensor); }
  std::optional<OffloadTerms> limits() const override { return engine_->limits(); }
  OffloadStats stats() const override { return engine_->stats(); }
  OffloadTerms terms(std::optional<c10::Device> /*device*/) override {
    OffloadTerms terms = *limits();
    for (OffloadPlace& place : terms.places) place.out_gbps = place.in_gbps = 1e6;
    return terms;
  }

 private:
  std::shared_ptr<OffloadEngine> engine_;
};

std::shared_ptr<OffloadEngine> make_engine(int64_t window = kWindow) {
  return std::make_shared<FastEngine>(
      offload_engine({.min_bytes = 4096, .prefetch_bytes = window, .max_leaving_bytes = window}));
}

AutoCheckpointOptions options_with(std::shared_ptr<OffloadEngine> engine) {
  AutoCheckpointOptions options{.name = "layers", .memory_budget = "50%"};
  options.offload = std::move(engine);
  return options;
}

/// Runs steps until there is a plan, and checks the steps that follow the plan.
template <class Planned>
void check_steps(const WideLayers& layers, const Planned& planned, int steps = 6) {
  const auto expected = layers.step(layers).second;
  for (int i = 0; i < steps; ++i) {
    const auto [peak, gradients] = layers.step(planned);
    for (size_t j = 0; j < expected.size(); ++j) CHECK(same_bits(gradients[j], expected[j]));
    if (i + 1 == steps) CHECK(peak <= planned.plan().predicted_peak_bytes);
  }
}

struct PlanPath {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("auto_offload" + std::to_string(::getpid()) + ".json");
  PlanPath() = default;
  PlanPath(const PlanPath&) = delete;
  PlanPath& operator=(const PlanPath&) = delete;
  ~PlanPath() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("A planned function moves what its plan says", "[budget][auto][offload]") {
  const WideLayers layers;
  const auto engine = make_engine();
  std::vector<std::string> lines;
  AutoCheckpointOptions options = options_with(engine);
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  const auto planned = auto_checkpoint(options)(layers);
  for (int i = 0; i < 3; ++i) layers.step(planned);
  CHECK(engine->stats().left_count == 0);  // Steps that are measured move nothing.
  check_steps(layers, planned);
  const MemoryPlan plan = planned.plan();
  CHECK(plan.offloaded_bytes > 0);
  CHECK(engine->stats().left_bytes > 0);
  CHECK(engine->stats().away_bytes == 0);
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[1], ContainsSubstring("of the step runs again or waits; moves "));
}

TEST_CASE("A store that cannot be planned for is refused at once", "[budget][auto][offload]") {
  const WideLayers layers;
  const auto make = [&](std::shared_ptr<OffloadEngine> engine) {
    auto_checkpoint(options_with(std::move(engine)))(layers);
  };
  CHECK_THAT(error_text([&] { make(offload_engine()); }),
             ContainsSubstring("[auto_checkpoint] 'layers': [memory plan] "
                               "offload.max_leaving_bytes: expected a limit, got none"));
}

TEST_CASE("Windows that leave no room are warned of once", "[budget][auto][offload]") {
  const WideLayers layers;
  std::vector<std::string> warnings;
  AutoCheckpointOptions options = options_with(make_engine(int64_t{64} << 20));
  options.warn = collect_in(warnings);
  const auto planned = auto_checkpoint(options)(layers);
  check_steps(layers, planned);
  CHECK(planned.plan().offloaded_bytes == 0);
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], ContainsSubstring("'layers': [memory plan] offload: nothing moves"));
}

TEST_CASE("A plan file that moves wants a store, and is planned anew for another one",
          "[budget][auto][offload]") {
  const WideLayers layers;
  const PlanPath file;
  AutoCheckpointOptions options = options_with(make_engine());
  options.plan_file = file.path;
  check_steps(layers, auto_checkpoint(options)(layers));

  options.offload = make_engine();
  const auto again = auto_checkpoint(options)(layers);
  CHECK(again.plan().offloaded_bytes > 0);
  check_steps(layers, again, 1);
  CHECK(options.offload->stats().left_bytes > 0);

  options.offload = make_engine(kWindow / 2);
  const auto other = auto_checkpoint(options)(layers);
  CHECK(other.plan().offload.prefetch_bytes == kWindow / 2);
  check_steps(layers, other, 1);

  options.offload = nullptr;
  CHECK_THAT(error_text([&] { auto_checkpoint(options)(layers); }),
             ContainsSubstring("expected a plan that moves nothing, as auto_checkpoint() has no "
                               "store, got one for a store"));
}

TEST_CASE("A plan file without moves is planned anew for a store", "[budget][auto][offload]") {
  const WideLayers layers;
  const PlanPath file;
  AutoCheckpointOptions options = options_with(nullptr);
  options.plan_file = file.path;
  const auto planned = auto_checkpoint(options)(layers);
  check_steps(layers, planned);
  options.offload = make_engine();
  const auto with_store = auto_checkpoint(options)(layers);
  CHECK(with_store.plan().offloaded_bytes > 0);
  CHECK(with_store.plan().predicted_overhead < planned.plan().predicted_overhead);
  check_steps(layers, with_store, 1);
}

TEST_CASE("A process follows another one's plan that moves", "[budget][auto][offload]") {
  const WideLayers layers;
  std::vector<std::string> decisions;
  AutoCheckpointOptions first = options_with(make_engine());
  first.agree = [&](const std::string& own) {
    decisions.push_back(own);
    return own;
  };
  const auto leader = auto_checkpoint(first)(layers);
  check_steps(layers, leader);

  const auto follower_with = [&](std::shared_ptr<OffloadEngine> engine) {
    AutoCheckpointOptions options = options_with(std::move(engine));
    options.agree = [&decisions, step = size_t{0}](const std::string& /*own*/) mutable {
      return decisions.at(step++);
    };
    return auto_checkpoint(options)(layers);
  };
  const auto follower = follower_with(make_engine());
  check_steps(layers, follower);
  CHECK(follower.plan().offloaded_bytes == leader.plan().offloaded_bytes);
  CHECK((follower.plan().cuts.keep == leader.plan().cuts.keep));
  CHECK(follower.plan().predicted_peak_bytes == leader.plan().predicted_peak_bytes);
  const auto without = follower_with(nullptr);
  CHECK_THAT(error_text([&] { check_steps(layers, without); }),
             ContainsSubstring("got one that moves results, and no store (offload) here"));
}

}  // namespace remat
