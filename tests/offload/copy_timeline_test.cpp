// SPDX-License-Identifier: BSD-3-Clause

// The planner's timeline of copies against an engine's, in virtual time.
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "planner/step/copy_timeline.h"
#include "support/catch.h"
#include "support/silence.h"

#include <remat/offload/offload_engine.h>
#include "offload/virtual_link.h"

namespace remat {
namespace {

using detail::CopyStep;
using detail::CopyTimeline;
using StepKind = CopyStep::Kind;

/// A random step that puts values, releases them, and gets each one once or more, mostly in reverse
/// order.
class RandomStep {
 public:
  explicit RandomStep(uint64_t seed) : random_(seed) {
    const auto count = static_cast<int32_t>(2 + below(12));
    for (int32_t v = 0; v < count; ++v) bytes_.push_back(static_cast<int64_t>(1 + below(40)) * 100);
    forward();
    backward();
  }

  const std::vector<int64_t>& bytes() const { return bytes_; }
  const std::vector<CopyStep>& steps() const { return steps_; }
  OffloadTerms terms() {
    OffloadTerms terms;
    const double gbps = 0.0005 * static_cast<double>(1 + below(8));
    terms.places = {{.out_gbps = gbps, .in_gbps = gbps, .latency_us = 1.0 * below(50)}};
    if (below(4) == 0) terms.max_bytes = static_cast<int64_t>(below(20)) * 1000;
    terms.prefetch_bytes = static_cast<int64_t>(below(10)) * 1000;
    terms.max_leaving_bytes = static_cast<int64_t>(below(10)) * 1000;
    return terms;
  }

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  void add(StepKind kind, int32_t value) { steps_.push_back({kind, value, 0}); }
  void compute() {
    steps_.push_back({StepKind::kCompute, -1, static_cast<double>(below(4) * below(800))});
  }

  void forward() {
    std::vector<int32_t> held;
    for (int32_t v = 0; v < static_cast<int32_t>(bytes_.size()); ++v) {
      compute();
      add(StepKind::kPut, v);
      held.push_back(v);
      while (!held.empty() && below(3) > 0) {
        const size_t which = below(held.size());
        add(StepKind::kAlone, held[which]);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    compute();
    for (const int32_t v : held) add(StepKind::kAlone, v);
  }

  void backward() {
    std::vector<int32_t> left;
    for (int32_t v = 0; v < static_cast<int32_t>(bytes_.size()); ++v) left.push_back(v);
    std::vector<int32_t> given;
    while (!left.empty()) {
      const size_t which = below(4) > 0 ? left.size() - 1 : below(left.size());
      add(StepKind::kAsk, left[which]);
      given.push_back(left[which]);
      if (below(4) > 0) left.erase(left.begin() + static_cast<std::ptrdiff_t>(which));
      compute();
      while (!given.empty() && below(2) > 0) {
        const size_t dropped = below(given.size());
        add(StepKind::kDrop, given[dropped]);
        given.erase(given.begin() + static_cast<std::ptrdiff_t>(dropped));
      }
    }
    for (const int32_t v : given) add(StepKind::kDrop, v);
  }

  std::mt19937_64 random_;
  std::vector<int64_t> bytes_;
  std::vector<CopyStep> steps_;
};

/// Runs the step on an engine whose link has a virtual clock.
class EngineRun {
 public:
  EngineRun(const std::vector<int64_t>& bytes, const OffloadTerms& terms)
      : bytes_(bytes),
        link_(virtual_link(
            {.gbps = terms.places[0].out_gbps, .latency_us = terms.places[0].latency_us})),
        engine_(offload_engine({.memories = {host_memory(
                                    {.max_bytes = terms.places[0].max_bytes, .link = link_.link})},
                                .min_bytes = 0,
                                .max_bytes = terms.max_bytes,
                                .prefetch_bytes = terms.prefetch_bytes,
                                .max_leaving_bytes = terms.max_leaving_bytes})) {}

  /// Returns the time for which the step waited.
  double run(const std::vector<CopyStep>& steps) {
    std::vector<at::Tensor> made(bytes_.size());
    std::vector<std::shared_ptr<OffloadStore::Ticket>> tickets(bytes_.size());
    std::vector<std::vector<at::Tensor>> given(bytes_.size());
    link_.clock->pass_us(1e6);  // lets the copies of the step before end
    const double begin = link_.clock->now_us();
    double computed = 0;
    for (const CopyStep& step : steps) {
      const auto v = static_cast<size_t>(step.value);
      switch (step.kind) {
        case StepKind::kCompute:
          link_.clock->pass_us(step.us);
          computed += step.us;
          break;
        case StepKind::kPut:
          made[v] = at::full({bytes_[v]}, step.value, at::kByte);
          tickets[v] = engine_->put(made[v].detach());
          break;
        case StepKind::kAlone:
          made[v].reset();
          break;
        case StepKind::kAsk:
          given[v].push_back(tickets[v]->get());
          REQUIRE(given[v].back().eq(step.value).all().item<bool>());
          break;
        case StepKind::kDrop:
          given[v].pop_back();
          break;
      }
    }
    return link_.clock->now_us() - begin - computed;
  }

  OffloadStats stats() const { return engine_->stats(); }

 private:
  const std::vector<int64_t>& bytes_;
  VirtualLink link_;
  std::shared_ptr<OffloadEngine> engine_;
};

TEST_CASE("An engine that knows the order waits as long as is planned", "[offload][cpu]") {
  const Silence silence;  // memories that are full warn
  double waited = 0;
  int64_t moved = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    RandomStep step(seed);
    const OffloadTerms terms = step.terms();
    EngineRun engine(step.bytes(), terms);
    engine.run(step.steps());  // the engine learns the order
    const OffloadStats before = engine.stats();
    const double us = engine.run(step.steps());
    const OffloadStats after = engine.stats();
    CopyTimeline timeline(terms, step.bytes());
    const detail::CopyTimes planned = timeline.run(step.steps());
    REQUIRE(std::abs(planned.waited_us - us) <= 1e-6 * (1 + us));
    REQUIRE(planned.left_bytes == after.left_bytes - before.left_bytes);
    REQUIRE(planned.fetched_bytes == after.fetched_bytes - before.fetched_bytes);
    waited += us;
    moved += planned.fetched_bytes;
  }
  CHECK(waited > 0);
  CHECK(moved > 0);
}

}  // namespace
}  // namespace remat
