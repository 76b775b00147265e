// SPDX-License-Identifier: BSD-3-Clause

// MemoryMeter: exact bytes, peaks, nesting, graphs, and the threads whose reports count.
#include <remat/inspect/memory_meter.h>

#include "support/catch.h"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>

#include <memory>
#include <thread>
#include <utility>

#include "support/default_device.h"

namespace {

using remat::default_device;
using remat::MemoryMeter;

constexpr int64_t kKiB = 1024;

at::Tensor kibibytes(int64_t count) {
  return at::empty({count * kKiB}, at::kByte);
}

// Reports memory as an allocator of that device does.
void report_allocation(void* address, int64_t bytes, c10::Device device) {
  c10::reportMemoryUsageToProfiler(address, bytes, /*total_allocated=*/0, /*total_reserved=*/0,
                                   device);
}

template <class Fn>
void on_new_thread(Fn fn) {
  std::thread(std::move(fn)).join();
}

// Opens a backward inside a backward, `depth` deep. From 60 levels on, autograd uses its own
// threads.
struct BackwardInBackward : torch::autograd::Function<BackwardInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            int64_t depth) {
    ctx->saved_data["depth"] = depth;
    return x.clone();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const int64_t depth = ctx->saved_data["depth"].toInt();
    if (depth > 0) {
      const at::AutoGradMode grad_mode(true);
      const at::Tensor inner = torch::ones({1}, torch::requires_grad());
      BackwardInBackward::apply(inner, depth - 1).backward();
    } else {
      innermost_thread = std::this_thread::get_id();
      innermost_tensor = kibibytes(64);
    }
    return {grads[0], at::Tensor()};
  }

  inline static std::thread::id innermost_thread;
  inline static at::Tensor innermost_tensor;
};

// The legacy profiler. libkineto's starts a thread that reads its configuration, which may still
// run when a short process ends.
class TorchProfiler {
 public:
  TorchProfiler() { enable(); }
  ~TorchProfiler() { torch::autograd::profiler::disableProfilerLegacy(); }
  TorchProfiler(const TorchProfiler&) = delete;
  TorchProfiler& operator=(const TorchProfiler&) = delete;

  static void enable() {
    torch::autograd::profiler::enableProfilerLegacy(
        torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::CPU,
                                              /*report_input_shapes=*/false,
                                              /*profile_memory=*/true));
  }
};

TEST_CASE("A meter counts the bytes of live tensors exactly", "[inspect][meter]") {
  const int64_t bytes_of_floats = remat::block_bytes(4'000'000);  // 10^6 x 4 B
  const MemoryMeter meter;
  CHECK(meter.current_bytes(default_device()) == 0);

  at::Tensor million_floats = at::empty({1000, 1000});
  CHECK(meter.current_bytes(default_device()) == bytes_of_floats);

  const at::Tensor view =
      million_floats.slice(0, 10, 20);  // Has no memory of its own, but keeps its whole base alive.
  million_floats.reset();
  CHECK(meter.current_bytes(default_device()) == bytes_of_floats);

  const at::Tensor bytes = at::empty({123}, at::kChar);
  CHECK(meter.current_bytes(default_device()) == bytes_of_floats + remat::block_bytes(123));
}

TEST_CASE("The peak outlives the tensors and restarts from what is live", "[inspect][meter]") {
  MemoryMeter meter;
  const at::Tensor kept = kibibytes(2);
  kibibytes(5);  // Freed at once: 2 + 5 KiB at most.
  CHECK(meter.current_bytes(default_device()) == 2 * kKiB);
  CHECK(meter.peak_bytes(default_device()) == 7 * kKiB);

  meter.reset_peak();
  CHECK(meter.peak_bytes(default_device()) == 2 * kKiB);
  kibibytes(3);
  CHECK(meter.peak_bytes(default_device()) == 5 * kKiB);
  kibibytes(1);  // less than the peak
  CHECK(meter.peak_bytes(default_device()) == 5 * kKiB);
}

TEST_CASE("A storage that grows counts with its old and new block while it is copied",
          "[inspect][meter]") {
  const MemoryMeter meter;
  at::Tensor grown = kibibytes(1);
  grown.resize_({4 * kKiB});
  CHECK(meter.current_bytes(default_device()) == 4 * kKiB);
  CHECK(meter.peak_bytes(default_device()) == 5 * kKiB);
}

TEST_CASE("Nested meters each see every report", "[inspect][meter]") {
  const MemoryMeter outer;
  const at::Tensor before = kibibytes(1);
  at::Tensor inside;
  {
    const MemoryMeter inner;
    inside = kibibytes(2);
    kibibytes(4);
    CHECK(inner.current_bytes(default_device()) == 2 * kKiB);
    CHECK(inner.peak_bytes(default_device()) == 6 * kKiB);
  }
  CHECK(outer.current_bytes(default_device()) == 3 * kKiB);
  CHECK(outer.peak_bytes(default_device()) == 7 * kKiB);
  inside.reset();
  CHECK(outer.current_bytes(default_device()) == 1 * kKiB);
}

TEST_CASE("A block older than the meter is not its own", "[inspect][meter]") {
  const MemoryMeter outer;
  at::Tensor old_block = kibibytes(8);
  const MemoryMeter inner;
  old_block.reset();
  CHECK(inner.current_bytes(default_device()) == 0);
  CHECK(outer.current_bytes(default_device()) == 0);
}

TEST_CASE("Addresses that an earlier meter saw do not disturb a later one", "[inspect][meter]") {
  // 1. metered, freed unmetered; 2. the address is reused unmetered; 3. freed under a second meter,
  // to which c10 reports the size of step 1.
  at::Tensor first;
  {
    const MemoryMeter meter;
    first = kibibytes(64);
  }
  const void* address = first.data_ptr();
  first.reset();
  at::Tensor second = at::empty({60 * kKiB}, at::kByte);
  INFO("same address: " << (second.data_ptr() == address));

  const MemoryMeter meter;
  second.reset();
  CHECK(meter.current_bytes(default_device()) == 0);
  const at::Tensor third = kibibytes(64);
  CHECK(meter.current_bytes(default_device()) == 64 * kKiB);
}

TEST_CASE("A graph costs what it saves, and backward leaves the gradient", "[inspect][meter]") {
  const at::Tensor x = torch::randn({64, 64}, torch::requires_grad());  // 64 x 64 x 4 B = 16 KiB
  const MemoryMeter meter;
  at::Tensor y = x.exp();                                     // Saves its result.
  at::Tensor z = y.sin();                                     // Saves y again, the same storage.
  CHECK(meter.current_bytes(default_device()) == 32 * kKiB);  // y and z
  z.reset();
  CHECK(meter.current_bytes(default_device()) == 16 * kKiB);  // y; only sin's node is gone with z
  at::Tensor loss = y.sin().sum();
  y.reset();
  CHECK(meter.current_bytes(default_device()) ==
        16 * kKiB + remat::block_bytes(4));  // y, saved by exp and by sin, and the loss
  loss.backward();
  loss.reset();
  CHECK(meter.current_bytes(default_device()) == 16 * kKiB);  // x.grad
}

TEST_CASE("Allocations on autograd's own threads count", "[inspect][meter]") {
  const MemoryMeter meter;
  {
    const at::Tensor x = torch::ones({1}, torch::requires_grad());
    BackwardInBackward::apply(x, 80).backward();
  }
  CHECK(BackwardInBackward::innermost_thread != std::this_thread::get_id());
  CHECK(meter.current_bytes(default_device()) == 64 * kKiB);
  BackwardInBackward::innermost_tensor.reset();
  CHECK(meter.current_bytes(default_device()) == 0);
}

TEST_CASE("A thread counts if and only if it carries the meter's thread-local state",
          "[inspect][meter]") {
  const MemoryMeter meter;
  at::Tensor seen;
  at::Tensor unseen;
  on_new_thread([&seen, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard guard(state);
    seen = kibibytes(1);
  });
  on_new_thread([&unseen] { unseen = kibibytes(2); });
  CHECK(meter.current_bytes(default_device()) == 1 * kKiB);
  unseen.reset();
  CHECK(meter.current_bytes(default_device()) == 1 * kKiB);
}

TEST_CASE("A block freed on a foreign thread stays counted until its address comes back",
          "[inspect][meter]") {
  const MemoryMeter meter;
  SECTION("it stays counted") {
    at::Tensor block = kibibytes(4);
    on_new_thread([&block] { block.reset(); });
    CHECK(meter.current_bytes(default_device()) == 4 * kKiB);
  }
  SECTION("the new block at its address replaces it") {
    int block = 0;
    report_allocation(&block, 4 * kKiB, c10::kCPU);
    report_allocation(&block, 1 * kKiB, c10::kCPU);
    CHECK(meter.current_bytes() == 1 * kKiB);
  }
}

TEST_CASE("A meter destroyed out of turn stops counting and harms nobody", "[inspect][meter]") {
  auto first = std::make_unique<MemoryMeter>();
  auto second = std::make_unique<MemoryMeter>();
  first.reset();
  const at::Tensor one = kibibytes(1);
  CHECK(second->current_bytes(default_device()) == 1 * kKiB);
  second.reset();
  CHECK_FALSE(c10::memoryProfilingEnabled());  // No meter is left on the thread.
}

TEST_CASE("A meter destroyed on a foreign thread is given up with the next meter",
          "[inspect][meter]") {
  auto stray = std::make_unique<MemoryMeter>();
  on_new_thread([&stray] { stray.reset(); });
  CHECK(c10::memoryProfilingEnabled());
  {
    const MemoryMeter meter;
    const at::Tensor one = kibibytes(1);
    CHECK(meter.current_bytes(default_device()) == 1 * kKiB);
  }
  CHECK_FALSE(c10::memoryProfilingEnabled());
}

TEST_CASE("Other device types count apart", "[inspect][meter]") {
  const MemoryMeter meter;
  const at::Tensor cpu = torch::empty({kKiB}, at::device(at::kCPU).dtype(at::kByte));
  CHECK(meter.current_bytes(c10::DeviceType::CUDA) == 0);
  int block = 0;
  report_allocation(&block, 512, c10::Device(c10::kCUDA, 1));
  CHECK(meter.current_bytes(c10::DeviceType::CUDA) == 512);
  CHECK(meter.current_bytes() == 1 * kKiB);
}

TEST_CASE("Devices of a type count apart, and together without an index", "[inspect][meter]") {
  MemoryMeter meter;
  int first = 0;
  int second = 0;
  const c10::Device other(c10::kCUDA, 1);
  report_allocation(&first, 512, c10::Device(c10::kCUDA, 0));
  report_allocation(&second, 1024, other);
  report_allocation(&second, -1024, other);
  CHECK(meter.peak_bytes(c10::kCUDA) == 512 + 1024);
  CHECK(meter.peak_bytes(c10::Device(c10::kCUDA, 0)) == 512);
  CHECK(meter.peak_bytes(other) == 1024);
  CHECK(meter.current_bytes(other) == 0);
  CHECK(meter.peak_bytes(c10::Device(c10::kCUDA, 2)) == 0);
  meter.reset_peak();
  CHECK(meter.peak_bytes(other) == 0);
}

TEST_CASE("A meter that was stopped tells what it had counted", "[inspect][meter]") {
  MemoryMeter meter;
  const at::Tensor before = kibibytes(1);
  meter.stop();
  const at::Tensor after = kibibytes(2);
  CHECK(meter.current_bytes(default_device()) == 1 * kKiB);
  CHECK(meter.peak_bytes(default_device()) == 1 * kKiB);
}

TEST_CASE("A meter under a running torch profiler is refused", "[inspect][meter]") {
  // If this were allowed, the profiler's callbacks would read the meter's state as their own.
  const TorchProfiler profiler;
  CHECK_THROWS_WITH(MemoryMeter(),
                    ContainsSubstring("[MemoryMeter] construction: expected no torch profiler on "
                                      "this thread, got a running one. Stop the profiler before "
                                      "metering"));
}

TEST_CASE("A torch profiler under a meter is refused by torch, and may start after it",
          "[inspect][meter]") {
  {
    const MemoryMeter meter;
    CHECK_THROWS_WITH(TorchProfiler::enable(), ContainsSubstring("Profiler is already enabled"));
  }
  CHECK_NOTHROW(TorchProfiler());
}

}  // namespace
