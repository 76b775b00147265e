// SPDX-License-Identifier: BSD-3-Clause

// Objects of CUDA's runtime, for tests that use the stand-in without LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda_stand_in/control.h"
#include "support/catch.h"

namespace cuda_stand_in_test {

inline constexpr size_t kMiB = size_t{1} << 20;

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

inline void wait(cudaStream_t waiting, cudaStream_t awaited) {
  const Event event;
  CHECK(cudaEventRecord(event, awaited) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(waiting, event, 0) == cudaSuccess);
}

inline void launch_on(cudaStream_t stream) {
  static const char kernel = 0;
  CHECK(cudaLaunchKernel(&kernel, dim3(10), dim3(100), nullptr, 0, stream) == cudaSuccess);
}

}  // namespace cuda_stand_in_test
