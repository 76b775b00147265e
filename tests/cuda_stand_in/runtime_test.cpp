// SPDX-License-Identifier: BSD-3-Clause

// The stand-in's runtime by itself, as a program sees it through CUDA's own functions.
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <functional>

#include "cuda_stand_in/control.h"
#include "support/catch.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr const char* kOrders[] = {"eager", "lazy", "side-lazy", "side-eager", "random"};

// An int in the memory of the current device.
class DeviceInt {
 public:
  explicit DeviceInt(int value) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&p_), sizeof(int)) == cudaSuccess);
    REQUIRE(cudaMemcpy(p_, &value, sizeof(int), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  DeviceInt(const DeviceInt&) = delete;
  DeviceInt& operator=(const DeviceInt&) = delete;
  ~DeviceInt() { cudaFree(p_); }

  int* get() const { return p_; }
  void copy_from(const DeviceInt& other, cudaStream_t stream) const {
    CHECK(cudaMemcpyAsync(p_, other.p_, sizeof(int), cudaMemcpyDeviceToDevice, stream) ==
          cudaSuccess);
  }
  int value() const {
    int value = 0;
    CHECK(cudaMemcpy(&value, p_, sizeof(int), cudaMemcpyDeviceToHost) == cudaSuccess);
    return value;
  }

 private:
  int* p_ = nullptr;
};

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStreamCreateWithPriority(&stream_, flags, 0);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { cudaEventCreate(&event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Waits for both devices, then restores device, order, capacity, what is left out, and the counts.
struct CleanState {
  CleanState() { restore(); }
  ~CleanState() { restore(); }
  static void restore() {
    for (const int device : {1, 0}) {
      cudaSetDevice(device);
      cudaDeviceSynchronize();
    }
    cuda_stand_in_leave_out(0);
    cuda_stand_in_set_order("eager", 1);
    cuda_stand_in_set_capacity(1024 * kMiB);
    cuda_stand_in_reset();
    cudaGetLastError();
  }
};

void wait(cudaStream_t waiting, cudaStream_t awaited) {
  const Event event;
  CHECK(cudaEventRecord(event, awaited) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(waiting, event, 0) == cudaSuccess);
}

enum class Wait { kYes, kNo };

// Writes 7 on a side stream and reads it on the default stream; 0 was there before.
int written_on_side_stream(const char* order, unsigned seed, Wait kind) {
  const DeviceInt source(7);
  const DeviceInt middle(0);
  const DeviceInt result(0);
  const Stream side;
  cuda_stand_in_set_order(order, seed);
  middle.copy_from(source, side);
  if (kind == Wait::kYes) wait(nullptr, side);
  result.copy_from(middle, nullptr);
  return result.value();
}

void launch_on(cudaStream_t stream) {
  static const char kernel = 0;
  CHECK(cudaLaunchKernel(&kernel, dim3(10), dim3(100), nullptr, 0, stream) == cudaSuccess);
}

sigjmp_buf before_access;

// A child of this process would not show it, since it cannot see device memory at all.
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

TEST_CASE("A stream that waits reads the right number in every order", "[cuda][order]") {
  const CleanState clean;
  for (const char* order : kOrders)
    for (unsigned seed = 0; seed < 20; ++seed) {
      INFO(order << ", seed " << seed);
      CHECK(written_on_side_stream(order, seed, Wait::kYes) == 7);
    }
  CHECK(cuda_stand_in_faults() == 0);
}

TEST_CASE("A missing wait reads a wrong number where the default stream is ahead",
          "[cuda][order]") {
  const CleanState clean;
  CHECK(written_on_side_stream("side-lazy", 1, Wait::kNo) == 0);
  CHECK(written_on_side_stream("eager", 1, Wait::kNo) == 7);
  int wrong = 0;
  for (unsigned seed = 0; seed < 20; ++seed)
    wrong += written_on_side_stream("random", seed, Wait::kNo) != 7;
  CHECK(wrong > 0);
}

TEST_CASE("A wait that is left out is a missing wait", "[cuda][order]") {
  const CleanState clean;
  cuda_stand_in_leave_out(2);
  CHECK(written_on_side_stream("side-lazy", 1, Wait::kYes) == 0);
  cuda_stand_in_leave_out(1);
  CHECK(written_on_side_stream("side-lazy", 1, Wait::kYes) == 7);
}

TEST_CASE("A random order repeats with its seed", "[cuda][order]") {
  const CleanState clean;
  for (unsigned seed = 0; seed < 20; ++seed)
    CHECK(written_on_side_stream("random", seed, Wait::kNo) ==
          written_on_side_stream("random", seed, Wait::kNo));
}

TEST_CASE("A stream waits for an event of another device", "[cuda][order]") {
  const CleanState clean;
  cuda_stand_in_set_order("lazy", 1);
  const DeviceInt source(7);
  const DeviceInt sent(0);
  const Stream side;
  cudaSetDevice(1);
  const DeviceInt received(0);
  cudaSetDevice(0);
  sent.copy_from(source, side);
  const Event event;
  cudaEventRecord(event, side);
  cudaSetDevice(1);
  CHECK(cudaStreamWaitEvent(nullptr, event, 0) == cudaSuccess);
  CHECK(cudaMemcpyPeerAsync(received.get(), 1, sent.get(), 0, sizeof(int), nullptr) == cudaSuccess);
  CHECK(received.value() == 7);
}

TEST_CASE("The default stream waits for streams that do not opt out", "[cuda][order]") {
  const CleanState clean;
  const auto written_by_stream_with = [](unsigned flags) {
    const DeviceInt source(7);
    const DeviceInt result(0);
    const Stream side(flags);
    cuda_stand_in_set_order("lazy", 1);
    result.copy_from(source, side);
    return result.value();
  };
  CHECK(written_by_stream_with(cudaStreamDefault) == 7);
  CHECK(written_by_stream_with(cudaStreamNonBlocking) == 0);
}

TEST_CASE("Each device has a default stream, and waits for its own alone", "[cuda][order]") {
  const CleanState clean;
  const DeviceInt source(7);
  const DeviceInt result(0);
  cuda_stand_in_set_order("lazy", 1);
  result.copy_from(source, nullptr);
  CHECK(cuda_stand_in_pending() == 1);
  cudaSetDevice(1);
  cudaDeviceSynchronize();
  CHECK(cuda_stand_in_pending() == 1);
  cudaSetDevice(0);
  cudaDeviceSynchronize();
  CHECK(cuda_stand_in_pending() == 0);
}

TEST_CASE("A stream of another device takes no launch and no event", "[cuda][order]") {
  const CleanState clean;
  const Stream of_device_0;
  cudaSetDevice(1);
  const Event of_device_1;
  static const char kernel = 0;
  CHECK(cudaLaunchKernel(&kernel, dim3(1), dim3(1), nullptr, 0, of_device_0) ==
        cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(of_device_1, of_device_0) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("A copy reads pageable memory at once and pinned memory late", "[cuda][copies]") {
  const CleanState clean;
  int* pinned = nullptr;
  REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(int), 0) == cudaSuccess);
  int pageable = *pinned = 7;
  const DeviceInt from_pageable(0);
  const DeviceInt from_pinned(0);
  const Stream side;
  cuda_stand_in_set_order("lazy", 1);
  cudaMemcpyAsync(from_pageable.get(), &pageable, sizeof(int), cudaMemcpyHostToDevice, side);
  cudaMemcpyAsync(from_pinned.get(), pinned, sizeof(int), cudaMemcpyHostToDevice, side);
  pageable = *pinned = 8;
  cudaStreamSynchronize(side);
  CHECK(from_pageable.value() == 7);
  CHECK(from_pinned.value() == 8);
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("An event is ready when its stream came there, or was asked often", "[cuda][events]") {
  const CleanState clean;
  const DeviceInt number(7);
  const Event event;
  cuda_stand_in_set_order("lazy", 1);
  cudaEventRecord(event, nullptr);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);

  cudaEventRecord(event, nullptr);
  int queries = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++queries;
  CHECK(queries == 100);

  cudaEventRecord(event, nullptr);
  cuda_stand_in_leave_out(4);
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cuda_stand_in_pending() == 1);
  cuda_stand_in_leave_out(8);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cuda_stand_in_pending() == 1);
}

TEST_CASE("The virtual clock adds up what work costs", "[cuda][clock]") {
  const CleanState clean;
  const Event begin;
  const Event end;
  float ms = 0;
  cudaEventRecord(begin, nullptr);
  SECTION("a launch: 2000 ns, and 0.01 ns for each of 1000 threads") {
    launch_on(nullptr);
    cudaEventRecord(end, nullptr);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    CHECK(std::lround(ms * 1e6) == 2010);
  }
  SECTION("a product: 2000 ns, and 1 ns for each 50,000 floating-point operations") {
    cuda_stand_in_spend_flops(nullptr, 5e8);
    cudaEventRecord(end, nullptr);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    CHECK(std::lround(ms * 1e6) == 12000);
  }
  SECTION("a fill: 2000 ns, and 1 ns for each 1500 bytes") {
    void* p = nullptr;
    cudaMalloc(&p, 3000000);
    cudaMemsetAsync(p, 0, 3000000, nullptr);
    cudaEventRecord(end, nullptr);
    CHECK(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess);
    CHECK(std::lround(ms * 1e6) == 4000);
    cudaFree(p);
  }
}

TEST_CASE("Copies run beside kernels on the virtual clock, kernels one after the other",
          "[cuda][clock]") {
  const CleanState clean;
  constexpr size_t kBytes = 2500000;  // 100,000 ns at 25 bytes/ns, after 2000 ns to start
  void* host = nullptr;
  void* device = nullptr;
  cudaHostAlloc(&host, kBytes, 0);
  cudaMalloc(&device, kBytes);
  const Stream side;
  const Stream other;
  const double begin_ns = cuda_stand_in_host_ns();
  cudaMemcpyAsync(device, host, kBytes, cudaMemcpyHostToDevice, side);
  cuda_stand_in_spend_flops(nullptr, 5e9);  // 2000 + 100,000 ns
  cudaDeviceSynchronize();
  CHECK(std::lround(cuda_stand_in_host_ns() - begin_ns) == 102000);
  cuda_stand_in_spend_flops(side, 5e9);
  cuda_stand_in_spend_flops(other, 5e9);
  cudaDeviceSynchronize();
  CHECK(std::lround(cuda_stand_in_host_ns() - begin_ns) == 3 * 102000);
  cudaFree(device);
  cudaFreeHost(host);
}

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
  // One int past the end, a wrong kind, a wrong device, memory that is not allocated.
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
  // The child sees the parent's memory no more, so it allocates its own in a process that has none
  // yet.
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

// Hidden: CMakeLists.txt runs these with the settings that their names tell.

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
  // The order is eager, so the stream has come there; the clock, which each query moves on by 1000
  // ns, has not.
  int queries = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ++queries;
  CHECK(queries == 6);
}
