// SPDX-License-Identifier: BSD-3-Clause

// Steps of every kind, some failing or abandoned, leave nothing behind: no byte, no region, no
// function, no file, no thread.
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include <remat/engine/region.h>
#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/heap_bytes.h"
#include "support/soak.h"

namespace {

using remat::checkpoint;
using remat::CheckpointOptions;
using remat::Policy;
using remat::ReplayEngine;

class Steps {
 public:
  void run(int64_t i) {
    switch (i % 8) {
      case 0:
        loss({.name = "soak, function"}).backward();
        break;
      case 1:
        loss({.name = "soak, tape", .replay = ReplayEngine::kTape}).backward();
        break;
      case 2:
        loss(cut()).backward();
        break;
      case 3:
        loss({.name = "soak, stored", .offload_store = store_}, Policy::kOffload).backward();
        break;
      case 4:
        loss({.name = "soak, dropped", .replay = ReplayEngine::kAuto});  // no backward
        break;
      case 5:
        fails_in_forward();
        break;
      case 6:
        fails_in_replay();
        break;
      default:
        backward_twice();
    }
    x_.mutable_grad().reset();
    w_.mutable_grad().reset();
  }

  /// Returns the number of live copies of the region's function.
  long live_functions() const { return token_.use_count() - 1; }

 private:
  static CheckpointOptions cut() {
    CheckpointOptions options{.name = "soak, cut", .replay = ReplayEngine::kTape};
    options.cuts.positions = {2, 4};
    return options;
  }

  at::Tensor loss(const CheckpointOptions& options, Policy policy = Policy::kSave) {
    const auto tail = [](const at::Tensor& t) { return torch::dropout(t.exp(), 0.5, true).tanh(); };
    const auto inner = [policy, w = w_](const at::Tensor& t) {
      return remat::native_op([w](const at::Tensor& u) { return u.mm(w); }, "mm", policy)(t);
    };
    return checkpoint(options)(
               [this, token = token_, tail, inner,
                taped = options.replay != ReplayEngine::kFunction](const at::Tensor& t) {
                 if (fail_ && remat::is_recomputing() == fail_in_replay_)
                   throw std::runtime_error("soak");
                 const at::Tensor y = taped ? t.sin().mm(w_) : inner(t.sin());
                 return checkpoint()(tail)(y).cos();
               })(x_)
        .sum();
  }

  void fails_in_forward() {
    fail_ = true;
    fail_in_replay_ = false;
    CHECK_THROWS_AS(loss({.name = "soak, forward throws"}), std::runtime_error);
    fail_ = false;
  }

  void fails_in_replay() {
    const at::Tensor y = loss({.name = "soak, replay throws"});
    fail_ = true;
    fail_in_replay_ = true;
    CHECK_THROWS_AS(y.backward(), std::runtime_error);
    fail_ = false;
  }

  void backward_twice() {
    const at::Tensor y = loss({.name = "soak, kept"});
    y.backward({}, /*retain_graph=*/true);
    y.backward();
  }

  at::Tensor x_ = torch::linspace(-1, 1, 16).view({4, 4}).clone().requires_grad_();
  at::Tensor w_ = torch::linspace(0, 1, 16).view({4, 4}).clone().requires_grad_();
  std::shared_ptr<remat::OffloadStore> store_ = remat::host_memory_store();
  std::shared_ptr<int> token_ = std::make_shared<int>();
  bool fail_ = false;
  bool fail_in_replay_ = false;
};

TEST_CASE("Steps of every kind are flat", "[backend][memory][soak]") {
  const int64_t steps = remat::soak_steps_per_part();
  Steps model;
  for (int64_t i = 0; i < 200; ++i) model.run(i);  // First uses allocate memory that stays.
  const remat::MemoryMeter meter;
  const int64_t files = remat::entries("/proc/self/fd");
  const int64_t threads = remat::entries("/proc/self/task");
  int64_t least_growth = std::numeric_limits<int64_t>::max();
  for (int part = 0; part < remat::kSoakParts; ++part) {
    const int64_t before = heap_bytes();
    for (int64_t i = 0; i < steps; ++i) {
      model.run(i);
      if (meter.current_bytes(remat::default_device()) != 0 || model.live_functions() != 0)
        FAIL("part " << part << ", step " << i << ": "
                     << meter.current_bytes(remat::default_device()) << " bytes, "
                     << model.live_functions() << " functions");
    }
    least_growth = std::min(least_growth, heap_bytes() - before);
  }
  // The C library moves its memory around; a leak of one byte per step would show in each part.
  CHECK(least_growth < steps);
  CHECK(remat::live_regions().empty());
  CHECK(remat::entries("/proc/self/fd") == files);
  CHECK(remat::entries("/proc/self/task") == threads);
}

}  // namespace
