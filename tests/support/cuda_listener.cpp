// SPDX-License-Identifier: BSD-3-Clause

// Fails a test case that ran on the CUDA stand-in if nobody computed the result of a kernel that it
// launched, or if it accessed invalid memory. Does nothing on a GPU and in a process without CUDA.
// Catch2 2 shows its listeners only to sources that ask for them, so nothing is precompiled here.
#define CATCH_CONFIG_EXTERNAL_INTERFACES

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "support/catch.h"

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

/// Returns the stand-in's function called `name`; nullptr on a GPU.
template <typename Function>
Function* stand_in(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Waits for all streams: their work belongs to the test that queued it.
void wait_for_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;
  const c10::impl::DeviceGuardImplInterface* const cuda = c10::impl::getDeviceGuardImpl(c10::kCUDA);
  for (c10::DeviceIndex i = 0; i < cuda->deviceCount(); ++i) cuda->synchronizeDevice(i);
}

class CudaListener final : public Listener {
 public:
  using Listener::Listener;

  void testCaseStarting(const Catch::TestCaseInfo& test) override {
    name_ = test.name;
    if (reset_) reset_();
  }

  // A failure must be reported by the end of the outermost section, which is the whole test case.
  void sectionEnded(const Catch::SectionStats& section) override {
    if (!reset_ || section.sectionInfo.name != name_) return;
    wait_for_devices();
    const uint64_t garbage = garbage_(/*print=*/1);
    const uint64_t faults = faults_();
    reset_();
    if (garbage != 0) {
      FAIL_CHECK("[CUDA stand-in] expected that the host computes every launch, got "
                 << garbage << " that nobody computed. Their names are above.");
    }
    if (faults != 0)
      FAIL_CHECK("[CUDA stand-in] expected no fault, got " << faults << ". They are above.");
  }

 private:
  void (*const reset_)() = stand_in<void()>("cuda_stand_in_reset");
  uint64_t (*const garbage_)(int) = stand_in<uint64_t(int)>("cuda_stand_in_garbage");
  uint64_t (*const faults_)() = stand_in<uint64_t()>("cuda_stand_in_faults");
  std::string name_;
};

CATCH_REGISTER_LISTENER(CudaListener)

}  // namespace
