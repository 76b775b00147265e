// SPDX-License-Identifier: BSD-3-Clause

// Random programs on a device whose queues run in random order: every value that comes back is the
// one that was put, whatever the order. REMAT_OFFLOAD_N: programs (default 3000). The device uses
// CPU memory.
#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/scheduled_link.h"
#include "support/catch.h"
#include "support/silence.h"

#include <remat/offload/offload_engine.h>

namespace remat {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);

/// Tensors with one value each, put and fetched again in a random order.
class Program {
 public:
  Program(uint64_t seed, MissingWait missing)
      : random_(seed), link_(std::make_shared<ScheduledLink>(seed, missing)), engine_(engine()) {}

  /// True if every value was right.
  bool is_right() {
    for (int step = 0; step < 3; ++step) {
      for (size_t count = 4 + below(12); count > 0; --count) forward();
      while (!tickets_.empty()) backward();
      live_.clear();
    }
    link_->finish();
    return wrong_ == 0;
  }

 private:
  struct Put {
    std::shared_ptr<OffloadStore::Ticket> ticket;
    int64_t value = 0;
  };

  uint64_t below(uint64_t end) { return random_() % end; }

  std::shared_ptr<OffloadEngine> engine() {
    HostMemoryOptions host;
    host.link = link_;
    if (below(4) == 0) host.max_bytes = static_cast<int64_t>(below(10)) * 4096;
    OffloadOptions options;
    options.memories = {host_memory(host)};
    options.min_bytes = static_cast<int64_t>(below(2)) * 2 * kWordBytes;
    options.prefetch_bytes = static_cast<int64_t>(below(6)) * 4 * kWordBytes;
    if (below(3) == 0) options.max_leaving_bytes = static_cast<int64_t>(below(4)) * 4 * kWordBytes;
    if (below(4) == 0) options.max_bytes = static_cast<int64_t>(below(12)) * 4 * kWordBytes;
    return offload_engine(options);
  }

  at::Tensor filled(int64_t value) {
    const int64_t words = int64_t{1} << below(3);
    const at::Storage storage = link_->allocate(words * kWordBytes, c10::kCPU);
    auto* const data = static_cast<int64_t*>(storage.mutable_data());
    link_->compute([=] { std::fill_n(data, words, value); });
    return at::empty({0}, at::kLong).set_(storage, 0, {words}, {1});
  }

  void check(const at::Tensor& tensor, int64_t value) {
    const auto* const data = static_cast<const int64_t*>(tensor.const_data_ptr());
    const int64_t words = tensor.numel();
    link_->compute([=, this] {
      for (int64_t i = 0; i < words; ++i) wrong_ += data[i] == value ? 0 : 1;
    });
  }

  void forward() {
    const int64_t value = ++values_;
    const at::Tensor tensor = filled(value);
    tickets_.push_back({engine_->put(tensor), value});
    if (below(8) == 0) tickets_.push_back({engine_->put(tensor.detach()), value});
    if (below(6) == 0) live_.push_back(tensor);
    if (below(4) == 0) filled(-1);
    if (below(8) == 0) backward();
  }

  void backward() {
    const bool is_in_order = below(4) > 0;
    const size_t which = is_in_order ? tickets_.size() - 1 : below(tickets_.size());
    const Put put = tickets_[which];
    if (below(8) > 0) check(put.ticket->get(), put.value);
    if (below(4) == 0) filled(-2);
    if (below(6) == 0) check(put.ticket->get(), put.value);
    if (below(6) == 0) return;  // as with retain_graph
    tickets_.erase(tickets_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  std::mt19937_64 random_;
  std::shared_ptr<ScheduledLink> link_;
  std::shared_ptr<OffloadEngine> engine_;
  std::vector<Put> tickets_;
  std::vector<at::Tensor> live_;
  int64_t values_ = 0;
  int64_t wrong_ = 0;
};

uint64_t program_count() {
  const char* const count = std::getenv("REMAT_OFFLOAD_N");
  return count ? std::strtoull(count, nullptr, 10) : 3000;
}

TEST_CASE("What comes back is what was put, in whatever order queues run",
          "[offload][schedules][cpu]") {
  const Silence of_programs_without_room;
  for (uint64_t seed = 0; seed < program_count(); ++seed) {
    INFO("seed " << seed);
    REQUIRE(Program(seed, MissingWait::kNone).is_right());
  }
}

// The number of programs until a missing wait is noticed shows how sharp the programs are.
TEST_CASE("Each wait that is left out is noticed", "[offload][schedules][cpu]") {
  const MissingWait missing = GENERATE(
      MissingWait::kCopyOutForCompute, MissingWait::kCopyInForCompute,
      MissingWait::kComputeForCopyIn, MissingWait::kHostForCopyOut, MissingWait::kHostForCopyIn);
  const Silence of_programs_without_room;
  uint64_t seed = 0;
  while (seed < 200 && Program(seed, missing).is_right()) ++seed;
  INFO("wait " << static_cast<int>(missing));
  CHECK(seed < 200);
}

}  // namespace
}  // namespace remat
