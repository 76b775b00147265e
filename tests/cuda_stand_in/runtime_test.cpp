// SPDX-License-Identifier: BSD-3-Clause

// Memory, faults, forks and settings of the stand-in, as a program sees them through CUDA's own
// functions.
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "cuda_stand_in/runtime_objects.h"

using namespace cuda_stand_in_test;

namespace {

sigjmp_buf before_access;

// Catches the signal in this process: a child could not see device memory at all.
bool is_segmentation_fault(const std::function<int()>& access) {
  struct sigaction action = {};
  struct sigaction previous = {};
  action.sa_handler = [](int) { siglongjmp(before_access, 1); };
  sigaction(SIGSEGV, &action, &previous);
  volatile bool is_fault = true;
  if (sigsetjmp(before_access, 1) == 0) {
    access();
    is_fault = false;
  }
  sigaction(SIGSEGV, &previous, nullptr);
  return is_fault;
}

// Runs `body` in a forked child. Returns its exit status, or minus the signal that ended it.
int status_of_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("Each device has its capacity", "[cuda][memory]") {
  const CleanState clean;
  cuda_stand_in_set_capacity(64 * kMiB);
  void* p = nullptr;
  void* q = nullptr;
  CHECK(cudaMalloc(&p, 48 * kMiB) == cudaSuccess);
  CHECK(cudaMalloc(&q, 48 * kMiB) == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  size_t free = 0;
  size_t total = 0;
  cudaMemGetInfo(&free, &total);
  CHECK(free == 16 * kMiB);
  CHECK(total == 64 * kMiB);
  cudaSetDevice(1);
  cudaMemGetInfo(&free, &total);
  CHECK(free == 64 * kMiB);
  CHECK(cudaMalloc(&q, 48 * kMiB) == cudaSuccess);
  CHECK(cuda_stand_in_used(1) == 48 * kMiB);
  CHECK(cudaFree(p) == cudaSuccess);
  CHECK(cudaFree(q) == cudaSuccess);
  CHECK(cuda_stand_in_used(0) + cuda_stand_in_used(1) == 0);
}

TEST_CASE("A pointer tells its device", "[cuda][memory]") {
  const CleanState clean;
  cudaSetDevice(1);
  const DeviceInt number(7);
  cudaSetDevice(0);
  cudaPointerAttributes attributes;
  cudaPointerGetAttributes(&attributes, number.get());
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 1);
  cudaPointerGetAttributes(&attributes, &attributes);
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
}

TEST_CASE("What would be an illegal access is refused and counted", "[cuda][faults]") {
  const CleanState clean;
  const DeviceInt number(7);
  int host[2] = {};
  // Each copy is invalid: one int past the end, a wrong kind, a wrong device, memory that is not
  // allocated.
  CHECK(cudaMemcpy(host, number.get(), 2 * sizeof(int), cudaMemcpyDeviceToHost) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, number.get(), sizeof(int), cudaMemcpyHostToDevice) ==
        cudaErrorInvalidValue);
  CHECK(cudaMemcpyPeerAsync(number.get(), 1, number.get(), 0, sizeof(int), nullptr) ==
        cudaErrorInvalidValue);
  CHECK(cudaFree(number.get() + 1) == cudaErrorInvalidValue);
  CHECK(cuda_stand_in_faults() == 4);
  CHECK(number.value() == 7);
  cuda_stand_in_reset();
  CHECK(cuda_stand_in_faults() == 0);
}

TEST_CASE("A launch is garbage unless somebody computes it", "[cuda][faults]") {
  const CleanState clean;
  const uint64_t before = cuda_stand_in_launches();
  launch_on(nullptr);
  CHECK(cuda_stand_in_garbage(0) == 1);
  cuda_stand_in_covered(1);
  launch_on(nullptr);
  cuda_stand_in_covered(-1);
  CHECK(cuda_stand_in_garbage(0) == 1);
  CHECK(cuda_stand_in_launches() == before + 2);
}

TEST_CASE("Features that are absent say so", "[cuda][absent]") {
  const CleanState clean;
  int can = 1;
  CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess);
  CHECK(can == 0);
  CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessUnsupported);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) == cudaErrorNotSupported);
  void* p = nullptr;
  CHECK(cudaMallocAsync(&p, 1, nullptr) == cudaErrorNotSupported);
}

TEST_CASE("The host cannot touch device memory but by its host address", "[cuda][memory]") {
  const CleanState clean;
  const DeviceInt number(7);
  CHECK(cuda_stand_in_is_device(number.get()));
  CHECK(*static_cast<int*>(cuda_stand_in_host_address(number.get())) == 7);
  // The child no longer sees the parent's memory, so it allocates its own, in a process that has
  // none yet.
  CHECK(is_segmentation_fault([&] { return *number.get(); }));
  CHECK_FALSE(is_segmentation_fault([] { return 7; }));
}

TEST_CASE("A child of a process that used a device cannot use it, nor reach its memory",
          "[cuda][fork]") {
  const CleanState clean;
  const DeviceInt number(7);
  const DeviceInt other(0);
  cuda_stand_in_set_order("lazy", 1);
  other.copy_from(number, nullptr);
  CHECK(status_of_child([&] {
          void* p = nullptr;
          const bool is_refused = cudaMalloc(&p, 1) == cudaErrorInitializationError &&
                                  cudaMemset(number.get(), 0, 4) == cudaErrorInitializationError;
          return is_refused && cuda_stand_in_pending() == 0 ? 0 : 1;
        }) == 0);
  CHECK(status_of_child([&] {
          *static_cast<int*>(cuda_stand_in_host_address(number.get())) = 8;
          return 0;
        }) == -SIGSEGV);
  CHECK(cuda_stand_in_pending() == 1);
  CHECK(other.value() == 7);
}

// Hidden: CMakeLists.txt runs these with the settings that their names give.

TEST_CASE("Settings: three devices of 64 MiB, capability 9.0, memory filled with 171",
          "[.settings]") {
  int devices = 0;
  cudaGetDeviceCount(&devices);
  CHECK(devices == 3);
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 2) == cudaSuccess);
  CHECK(properties.major == 9);
  CHECK(properties.totalGlobalMem == 64 * kMiB);
  void* p = nullptr;
  unsigned char byte = 0;
  CHECK(cudaMalloc(&p, 1) == cudaSuccess);
  CHECK(cudaMemcpy(&byte, p, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(byte == 171);
  CHECK(cudaFree(p) == cudaSuccess);
}

TEST_CASE("Settings: queries follow a clock on which a launch takes 5000 ns", "[.settings]") {
  cudaDeviceSynchronize();
  const Event event;
  cuda_stand_in_spend_flops(nullptr, 0);
  cudaEventRecord(event, nullptr);
  // The order is eager, so the stream has reached the event; the clock, which each query advances
  // by 1000 ns, has not.
  int queries = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++queries;
  CHECK(queries == 6);
}
