// SPDX-License-Identifier: BSD-3-Clause

// Runs the entries of the device's queues in a random order.
#include "offload/scheduled_link.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace remat {

// Free blocks by size; the last one freed is used first.
class ScheduledLink::Pool : public std::enable_shared_from_this<Pool> {
 public:
  ~Pool() {
    for (auto& [bytes, blocks] : free_) {
      for (void* const block : blocks) std::free(block);
    }
  }

  at::Storage take(int64_t bytes) {
    std::vector<void*>& blocks = free_[bytes];
    void* block = nullptr;
    if (blocks.empty()) {
      block = std::malloc(static_cast<size_t>(bytes));
    } else {
      block = blocks.back();
      blocks.pop_back();
    }
    auto* const owner = new Owner{shared_from_this(), block, bytes};
    return {c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        c10::DataPtr(block, owner, &Owner::give_back, c10::kCPU), nullptr, /*resizable=*/false)};
  }

 private:
  struct Owner {
    std::shared_ptr<Pool> pool;
    void* block;
    int64_t bytes;

    static void give_back(void* owner) {
      const std::unique_ptr<Owner> self(static_cast<Owner*>(owner));
      self->pool->free_[self->bytes].push_back(self->block);
    }
  };

  std::map<int64_t, std::vector<void*>> free_;
};

class ScheduledLink::Event final : public CopyEvent {
 public:
  explicit Event(ScheduledLink& link) : link_(link) {}

  bool is_done() override {
    if (!done) link_.run_some();
    return done || is_early;
  }
  void wait() override {
    while (!done && !is_early)
      TORCH_CHECK(link_.run_one(),
                  "expected something to run, got queues that wait for each other");
  }

  bool done = false;
  bool is_early = false;

 private:
  ScheduledLink& link_;
};

ScheduledLink::ScheduledLink(uint64_t seed, MissingWait missing)
    : random_(seed),
      missing_(missing),
      device_memory_(std::make_shared<Pool>()),
      host_memory_(std::make_shared<Pool>()) {}

ScheduledLink::~ScheduledLink() = default;

void ScheduledLink::compute(std::function<void()> kernel) {
  give(kCompute, std::move(kernel), nullptr);
}

void ScheduledLink::finish() {
  while (run_one()) {
  }
}

at::Storage ScheduledLink::allocate_host(int64_t bytes, c10::Device /*device*/) {
  return host_memory_->take(bytes);
}

at::Storage ScheduledLink::allocate(int64_t bytes, c10::Device /*device*/) {
  return device_memory_->take(bytes);
}

int64_t ScheduledLink::stream(c10::Device /*device*/) {
  return 0;
}

void ScheduledLink::share(const at::Storage& /*storage*/) {}

CopyEventPtr ScheduledLink::computed_so_far(c10::Device /*device*/) {
  return give(
      kCompute, [] {}, nullptr);
}

void ScheduledLink::hold_compute(const CopyEventPtr& event, c10::Device /*device*/) {
  if (missing_ != MissingWait::kComputeForCopyIn)
    give(
        kCompute, [] {}, event);
}

CopyEventPtr ScheduledLink::copy_out(const at::Storage& host, const at::Storage& device,
                                     const CopyEventPtr& after) {
  return copy(kOut, host, device, after, MissingWait::kCopyOutForCompute,
              MissingWait::kHostForCopyOut);
}

CopyEventPtr ScheduledLink::copy_in(const at::Storage& device, const at::Storage& host,
                                    const CopyEventPtr& after) {
  return copy(kIn, device, host, after, MissingWait::kCopyInForCompute,
              MissingWait::kHostForCopyIn);
}

CopyEventPtr ScheduledLink::copy(Queue queue, const at::Storage& to, const at::Storage& from,
                                 const CopyEventPtr& after, MissingWait ignored,
                                 MissingWait early) {
  void* const target = to.mutable_data();
  const void* const source = from.data();
  const size_t bytes = std::min(to.nbytes(), from.nbytes());
  const auto event = give(
      queue, [=] { std::memcpy(target, source, bytes); }, missing_ == ignored ? nullptr : after);
  event->is_early = missing_ == early;
  return event;
}

std::shared_ptr<ScheduledLink::Event> ScheduledLink::give(Queue queue, std::function<void()> run,
                                                          const CopyEventPtr& after) {
  auto event = std::make_shared<Event>(*this);
  queues_[queue].push_back({std::move(run), std::static_pointer_cast<Event>(after), event});
  return event;
}

bool ScheduledLink::run_one() {
  const size_t first = random_() % queues_.size();
  for (size_t i = 0; i < queues_.size(); ++i) {
    std::deque<Work>& queue = queues_[(first + i) % queues_.size()];
    if (queue.empty() || (queue.front().after && !queue.front().after->done)) continue;
    const Work work = std::move(queue.front());
    queue.pop_front();
    work.run();
    work.event->done = true;
    return true;
  }
  return false;
}

void ScheduledLink::run_some() {
  for (size_t count = random_() % 4; count > 0 && run_one(); --count) {
  }
}

}  // namespace remat
