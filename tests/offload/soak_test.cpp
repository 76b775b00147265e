// SPDX-License-Identifier: BSD-3-Clause

// Steps of every kind with engines whose threads copy, some failing or abandoned, leave nothing
// behind: no byte here or elsewhere, no file, no thread.
#include <c10/core/thread_pool.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/heap_bytes.h"
#include "support/soak.h"

#include <remat/engine/region.h>
#include <remat/offload/disk_memory.h>
#include <remat/offload/mask_store.h>
#include <remat/offload/offload_engine.h>
#include <remat/remat.h>

namespace remat {
namespace {

constexpr int64_t kWidth = 32;
constexpr int64_t kKinds = 9;

/// Steps of three layers. Each step uses the next of three stores with windows of two tensors: host
/// memory, a disk, and little host memory with a disk behind it.
class EngineSteps {
 public:
  EngineSteps() {
    const auto disk = [] {
      return disk_memory({.directory = std::filesystem::temp_directory_path(), .checksums = true});
    };
    const int64_t bytes = kWidth * kWidth * 4;
    memories_ = {host_memory(), disk(), host_memory({.max_bytes = 2 * bytes}), disk()};
    const auto engine = [&](std::vector<std::shared_ptr<OffloadMemory>> memories) {
      return offload_engine({.memories = std::move(memories),
                             .min_bytes = 0,
                             .prefetch_bytes = 2 * bytes,
                             .max_leaving_bytes = 2 * bytes});
    };
    engines_ = {engine({memories_[0]}), engine({memories_[1]}),
                engine({memories_[2], memories_[3]})};
    for (size_t i = 0; i < engines_.size(); ++i) stores_[i] = mask_store(engines_[i]);
  }

  void run(int64_t i) {
    engine_ = static_cast<size_t>(i) % engines_.size();
    switch (i / static_cast<int64_t>(engines_.size()) % kKinds) {
      case 0:
        check(loss(ReplayEngine::kFunction));
        break;
      case 1:
        check(loss(ReplayEngine::kTape));
        break;
      case 2:
        loss(ReplayEngine::kFunction);  // no backward
        break;
      case 3:
        loss(ReplayEngine::kFunction).backward({}, /*retain_graph=*/true);  // drops the graph
        break;
      case 4:
        x_.mutable_grad() = torch::autograd::grad({layers(ReplayEngine::kFunction, 2).sum()}, {x_},
                                                  {}, /*retain_graph=*/true)[0];
        break;
      case 5:
        thread_.run([this] { check(loss(ReplayEngine::kFunction)); });
        thread_.waitWorkComplete();
        break;
      case 6:
        throws(/*in_replay=*/false);
        break;
      case 7:
        throws(/*in_replay=*/true);
        break;
      default:
        nested();
    }
    x_.mutable_grad().reset();
    w_.mutable_grad().reset();
  }

  int64_t wrong() const { return wrong_; }

  /// Waits for copies to end, and releases the memory that they used.
  void settle() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const auto& engine : engines_) engine->put(torch::ones({1}));
  }

  int64_t bytes_elsewhere() const {
    int64_t bytes = 0;
    for (const auto& engine : engines_) bytes += engine->stats().away_bytes;
    return bytes;
  }

  int64_t system_bytes() const {
    int64_t bytes = 0;
    for (const auto& memory : memories_) bytes += memory->system_bytes();
    return bytes;
  }

  int64_t moved() const {
    int64_t count = 0;
    for (const auto& engine : engines_) count += engine->stats().fetched_count;
    return count;
  }

 private:
  at::Tensor layers(ReplayEngine replay, int count) {
    at::Tensor h = x_;
    for (int layer = 0; layer < count; ++layer) {
      const CheckpointOptions options{
          .name = "soak", .replay = replay, .offload_store = store(), .offload_inputs = true};
      const auto body = [this, replay](const at::Tensor& t) {
        if (fails_ && is_recomputing() == fails_in_replay_) throw std::runtime_error("soak");
        if (replay == ReplayEngine::kTape) return t.mm(w_).tanh();
        const auto mm = [this](const at::Tensor& u) { return u.mm(w_); };
        const at::Tensor y = native_op(mm, "mm", Policy::kOffload)(t.sin());
        return at::where(y > 0, y, -y).tanh();
      };
      h = checkpoint(options)(body)(h);
    }
    return h;
  }

  at::Tensor loss(ReplayEngine replay) { return layers(replay, 3).sum(); }

  const std::shared_ptr<OffloadStore>& store() const { return stores_[engine_]; }

  // Checks the gradient against that of the first step with the same loss, whatever the store.
  void check(const at::Tensor& loss) {
    loss.backward();
    at::Tensor& expected = expected_[loss.item<float>()];
    if (!expected.defined()) expected = x_.grad().clone();
    wrong_ += expected.equal(x_.grad()) ? 0 : 1;
  }

  void throws(bool in_replay) {
    fails_ = !in_replay;
    fails_in_replay_ = in_replay;
    if (in_replay) {
      const at::Tensor y = loss(ReplayEngine::kFunction);
      fails_ = true;
      CHECK_THROWS_AS(y.backward(), std::runtime_error);
    } else {
      CHECK_THROWS_AS(loss(ReplayEngine::kFunction), std::runtime_error);
    }
    fails_ = false;
  }

  void nested() {
    const auto outer = [this](const at::Tensor& t) {
      const auto inner = [this](const at::Tensor& u) { return u.mm(w_).exp(); };
      return checkpoint({.offload_store = store(), .offload_inputs = true})(inner)(t.cos());
    };
    checkpoint({.offload_store = store(), .offload_inputs = true})(outer)(x_.sin())
        .sum()
        .backward();
  }

  std::array<std::shared_ptr<OffloadMemory>, 4> memories_;
  std::array<std::shared_ptr<OffloadEngine>, 3> engines_;
  std::array<std::shared_ptr<OffloadStore>, 3> stores_;
  size_t engine_ = 0;
  at::Tensor x_ =
      torch::linspace(-1, 1, kWidth* kWidth).view({kWidth, kWidth}).clone().requires_grad_();
  at::Tensor w_ =
      torch::linspace(0, 0.1, kWidth* kWidth).view({kWidth, kWidth}).clone().requires_grad_();
  std::map<float, at::Tensor> expected_;
  c10::TaskThreadPool thread_{1};  // shared: c10d keeps a few bytes for each thread with regions
  bool fails_ = false;
  bool fails_in_replay_ = false;
  int64_t wrong_ = 0;
};

TEST_CASE("Steps with engines are flat", "[offload][threads][soak]") {
  const int64_t steps = soak_steps_per_part();
  EngineSteps model;
  for (int64_t i = 0; i < 200; ++i) model.run(i);  // First uses allocate memory that stays.
  const int64_t files = entries("/proc/self/fd");
  const int64_t threads = entries("/proc/self/task");
  int64_t least_growth = std::numeric_limits<int64_t>::max();
  int64_t least_taken = std::numeric_limits<int64_t>::max();
  for (int part = 0; part < kSoakParts; ++part) {
    const int64_t before = heap_bytes();
    const int64_t system_before = model.system_bytes();
    for (int64_t i = 0; i < steps; ++i) model.run(i);
    model.settle();
    CAPTURE(part);
    REQUIRE(model.bytes_elsewhere() == 0);
    least_growth = std::min(least_growth, heap_bytes() - before);
    least_taken = std::min(least_taken, model.system_bytes() - system_before);
  }
  CHECK(model.wrong() == 0);
  CHECK(model.moved() > steps);
  // The C library moves its memory around; a leak of one byte per step would show in each part.
  CHECK(least_growth < steps);
  // A late copy may take one more block in some part, but not in each part.
  CHECK(least_taken == 0);
  CHECK(live_regions().empty());
  CHECK(entries("/proc/self/fd") == files);
  CHECK(entries("/proc/self/task") == threads);
}

}  // namespace
}  // namespace remat
