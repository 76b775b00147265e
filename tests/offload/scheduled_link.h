// SPDX-License-Identifier: BSD-3-Clause

// A device whose queues run in any order that its events allow, chosen at random: the worst that a
// real device may do.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <remat/offload/copy_link.h>

namespace remat {

/// A wait that is left out on purpose.
enum class MissingWait : uint8_t {
  kNone,
  kCopyOutForCompute,
  kCopyInForCompute,
  kComputeForCopyIn,
  kHostForCopyOut,  ///< Copies out report that they are done as soon as they are queued.
  kHostForCopyIn,
};

/// Queued work runs only when somebody asks whether it is done, or waits. Freed memory is reused at
/// once for the next allocation, as by CUDA's caching allocator. For one thread.
class ScheduledLink final : public CopyLink, public std::enable_shared_from_this<ScheduledLink> {
 public:
  ScheduledLink(uint64_t seed, MissingWait missing);
  ~ScheduledLink() override;

  /// Queues `kernel` on the stream.
  void compute(std::function<void()> kernel);
  /// Runs all that is queued.
  void finish();

  at::Storage allocate_host(int64_t bytes, c10::Device device) override;
  at::Storage allocate(int64_t bytes, c10::Device device) override;
  int64_t stream(c10::Device device) override;
  void share(const at::Storage& storage) override;
  CopyEventPtr computed_so_far(c10::Device device) override;
  void hold_compute(const CopyEventPtr& event, c10::Device device) override;
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override;
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override;

 private:
  class Event;
  class Pool;
  struct Work {
    std::function<void()> run;
    std::shared_ptr<Event> after;
    std::shared_ptr<Event> event;
  };
  enum Queue : size_t { kCompute, kOut, kIn };

  std::shared_ptr<Event> give(Queue queue, std::function<void()> run, const CopyEventPtr& after);
  CopyEventPtr copy(Queue queue, const at::Storage& to, const at::Storage& from,
                    const CopyEventPtr& after, MissingWait ignored, MissingWait early);
  bool run_one();
  void run_some();

  std::mt19937_64 random_;
  MissingWait missing_;
  std::array<std::deque<Work>, 3> queues_;
  std::shared_ptr<Pool> device_memory_;
  std::shared_ptr<Pool> host_memory_;
};

}  // namespace remat
