// SPDX-License-Identifier: BSD-3-Clause

// Settings of LibTorch are read and restored.
#include <remat/engine/thread_state.h>

#include "support/catch.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using remat::ThreadState;

// Returns every setting of a ThreadState as a number.
std::vector<int> settings() {
  const at::Context& context = at::globalContext();
  std::vector<int> values = {context.deterministicFillUninitializedMemory(),
                             context.deterministicCuDNN(),
                             context.benchmarkCuDNN(),
                             context.deterministicMkldnn(),
                             context.userEnabledFlashSDP(),
                             context.userEnabledMemEfficientSDP(),
                             context.userEnabledMathSDP(),
                             context.userEnabledCuDNNSDP(),
                             context.deterministicAlgorithms(),
                             context.deterministicAlgorithmsWarnOnly(),
                             c10::get_default_dtype() == caffe2::TypeMeta::Make<double>(),
                             c10::AutogradState::get_tls_state().get_fw_grad_mode(),
                             at::autocast::is_autocast_cache_enabled()};
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    values.push_back(at::autocast::is_autocast_enabled(device));
    values.push_back(static_cast<int>(at::autocast::get_autocast_dtype(device)));
  }
  return values;
}

void change_settings() {
  at::Context& context = at::globalContext();
  context.setDeterministicFillUninitializedMemory(!context.deterministicFillUninitializedMemory());
  context.setDeterministicCuDNN(!context.deterministicCuDNN());
  context.setBenchmarkCuDNN(!context.benchmarkCuDNN());
  context.setDeterministicMkldnn(!context.deterministicMkldnn());
  context.setSDPUseFlash(!context.userEnabledFlashSDP());
  context.setSDPUseMemEfficient(!context.userEnabledMemEfficientSDP());
  context.setSDPUseMath(!context.userEnabledMathSDP());
  context.setSDPUseCuDNN(!context.userEnabledCuDNNSDP());
  context.setDeterministicAlgorithms(!context.deterministicAlgorithms(),
                                     !context.deterministicAlgorithmsWarnOnly());
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  c10::AutogradState::get_tls_state().set_fw_grad_mode(false);
  at::autocast::set_autocast_cache_enabled(!at::autocast::is_autocast_cache_enabled());
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    at::autocast::set_autocast_enabled(device, !at::autocast::is_autocast_enabled(device));
    at::autocast::set_autocast_dtype(device, at::kDouble);
  }
}

// Restores every setting at the end of a test.
class Restore {
 public:
  Restore() : before_(settings()) {}
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;
  ~Restore() {
    write(before_);
    CHECK(settings() == before_);
  }

 private:
  static void write(const std::vector<int>& values) {
    at::Context& context = at::globalContext();
    context.setDeterministicFillUninitializedMemory(values[0]);
    context.setDeterministicCuDNN(values[1]);
    context.setBenchmarkCuDNN(values[2]);
    context.setDeterministicMkldnn(values[3]);
    context.setSDPUseFlash(values[4]);
    context.setSDPUseMemEfficient(values[5]);
    context.setSDPUseMath(values[6]);
    context.setSDPUseCuDNN(values[7]);
    context.setDeterministicAlgorithms(values[8], values[9]);
    c10::set_default_dtype(values[10] ? caffe2::TypeMeta::Make<double>()
                                      : caffe2::TypeMeta::Make<float>());
    c10::AutogradState::get_tls_state().set_fw_grad_mode(values[11]);
    at::autocast::set_autocast_cache_enabled(values[12]);
    for (size_t i = 0; i < 2; ++i) {
      const c10::DeviceType device = i == 0 ? at::kCPU : at::kCUDA;
      at::autocast::set_autocast_enabled(device, values[13 + 2 * i]);
      at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(values[14 + 2 * i]));
    }
  }

  std::vector<int> before_;
};

TEST_CASE("A replay that casts weights keeps away from autocast's cache, another leaves the flag",
          "[tape][thread_state]") {
  const Restore restore;
  at::autocast::set_autocast_cache_enabled(true);
  for (const bool casts_weights : {false, true}) {
    const remat::ReplayThreadState replay(ThreadState::read(), casts_weights);
    CHECK(at::autocast::is_autocast_cache_enabled() == !casts_weights);
  }
}

TEST_CASE("A replay has every setting of the forward, and puts the present ones back",
          "[tape][thread_state]") {
  const Restore restore;
  const std::vector<int> expected = settings();
  const ThreadState forward = ThreadState::read();
  change_settings();
  const std::vector<int> present = settings();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(present[i] != expected[i]);  // change_settings() leaves out no setting
  }
  {
    const remat::ReplayThreadState replay(forward, /*casts_weights=*/false);
    CHECK(settings() == expected);
    {
      const remat::ReplayThreadState nested(ThreadState::read(), /*casts_weights=*/false);
      CHECK(settings() == expected);
    }
    CHECK(settings() == expected);
  }
  CHECK(settings() == present);
}

TEST_CASE("A replay in a replay may need other settings", "[tape][thread_state]") {
  const Restore restore;
  const ThreadState outer = ThreadState::read();
  const std::vector<int> outer_settings = settings();
  change_settings();
  const ThreadState inner = ThreadState::read();
  const std::vector<int> inner_settings = settings();
  const remat::ReplayThreadState outer_replay(outer, /*casts_weights=*/false);
  {
    const remat::ReplayThreadState inner_replay(inner, /*casts_weights=*/false);
    CHECK(settings()[10] == inner_settings[10]);  // the default dtype
    CHECK(settings()[3] == inner_settings[3]);
  }
  CHECK(settings()[10] == outer_settings[10]);
  CHECK(settings()[3] == outer_settings[3]);
}

TEST_CASE("A replay records gradients wherever it runs", "[tape][thread_state]") {
  const ThreadState forward = ThreadState::read();
  const at::NoGradGuard no_grad;
  const c10::InferenceMode inference;
  {
    const remat::ReplayThreadState replay(forward, /*casts_weights=*/false);
    CHECK(at::GradMode::is_enabled());
    CHECK_FALSE(c10::InferenceMode::is_enabled());
  }
  CHECK_FALSE(at::GradMode::is_enabled());
  CHECK(c10::InferenceMode::is_enabled());
}

TEST_CASE("Replays of several threads that need different settings of the process take turns",
          "[tape][thread_state]") {
  const Restore restore;
  const ThreadState floats = ThreadState::read();
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const ThreadState doubles = ThreadState::read();
  std::atomic<int> wrong{0};
  const auto replay = [&wrong](const ThreadState& state, caffe2::TypeMeta dtype) {
    for (int i = 0; i < 500; ++i) {
      const remat::ReplayThreadState turn(state, /*casts_weights=*/false);
      for (int n = 0; n < 10; ++n) {
        if (c10::get_default_dtype() != dtype) ++wrong;
        std::this_thread::yield();
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(replay, floats, caffe2::TypeMeta::Make<float>());
    threads.emplace_back(replay, doubles, caffe2::TypeMeta::Make<double>());
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(c10::get_default_dtype() == caffe2::TypeMeta::Make<double>());
}

}  // namespace
