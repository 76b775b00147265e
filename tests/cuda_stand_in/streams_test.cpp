// SPDX-License-Identifier: BSD-3-Clause

// Streams, events, copies and the virtual clock of the stand-in, as a program sees them through
// CUDA's own functions.
#include <cmath>

#include "cuda_stand_in/runtime_objects.h"

using namespace cuda_stand_in_test;

namespace {

constexpr const char* kOrders[] = {"eager", "lazy", "side-lazy", "side-eager", "random"};

enum class Wait { kYes, kNo };

// Writes 7 on a side stream and reads it on the default stream; the memory held 0 before.
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
  cuda_stand_in_set_order("lazy", 1);
  launch_on(nullptr);
  cudaSetDevice(1);
  launch_on(nullptr);
  launch_on(nullptr);
  CHECK(cuda_stand_in_pending() == 3);
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

TEST_CASE("A copy to pageable memory is over when it returns", "[cuda][copies]") {
  const CleanState clean;
  const DeviceInt source(7);
  const DeviceInt middle(0);
  const Stream side;
  cuda_stand_in_set_order("lazy", 1);
  middle.copy_from(source, side);
  int host = 0;
  cudaMemcpyAsync(&host, middle.get(), sizeof(int), cudaMemcpyDeviceToHost, side);
  CHECK(host == 7);
}

TEST_CASE("Freeing memory waits for what uses it", "[cuda][copies]") {
  const CleanState clean;
  const DeviceInt result(0);
  const Stream side;
  {
    const DeviceInt source(7);
    cuda_stand_in_set_order("lazy", 1);
    result.copy_from(source, side);
  }
  CHECK(result.value() == 7);
  CHECK(cuda_stand_in_faults() == 0);
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
  // The default stream waits for the copy: 102,000 ns, then 2000.
  cudaMemcpyAsync(device, host, kBytes, cudaMemcpyHostToDevice, side);
  wait(nullptr, side);
  cuda_stand_in_spend_flops(nullptr, 0);
  cudaStreamSynchronize(nullptr);
  CHECK(std::lround(cuda_stand_in_host_ns() - begin_ns) == 4 * 102000 + 2000);
  cudaFree(device);
  cudaFreeHost(host);
}

TEST_CASE("There is no time between events of two devices", "[cuda][clock]") {
  const CleanState clean;
  const Event here;
  cudaSetDevice(1);
  const Event there;
  CHECK(cudaEventRecord(there, nullptr) == cudaSuccess);
  cudaSetDevice(0);
  CHECK(cudaEventRecord(here, nullptr) == cudaSuccess);
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, here, there) == cudaErrorInvalidResourceHandle);
}
