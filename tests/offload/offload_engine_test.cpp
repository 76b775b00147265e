// SPDX-License-Identifier: BSD-3-Clause

// The offload engine: when storages leave and come back, its limits, and failing memory.
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/silence.h"

#include <remat/inspect/memory_meter.h>
#include <remat/offload/offload_engine.h>
#include "offload/virtual_link.h"

namespace remat {
namespace {

constexpr int64_t kBytes = 1000000;  // bytes of each tensor
using Ticket = std::shared_ptr<OffloadStore::Ticket>;

at::Tensor tensor_of(int64_t value) {
  return torch::full({kBytes / 4}, value, torch::kInt);
}

bool is_tensor_of(const at::Tensor& tensor, int64_t value) {
  return tensor.numel() == kBytes / 4 && tensor.eq(value).all().item<bool>();
}

/// An engine on a link in virtual time, and layers that take 100 us forward and 200 us backward. On
/// CUDA the engine has the device's link, so tests whose results depend on the clock are [cpu].
struct Chain {
  VirtualLink sim;
  std::shared_ptr<OffloadEngine> engine;

  explicit Chain(double gbps, OffloadOptions options = {.min_bytes = 0})
      : sim(virtual_link({.gbps = gbps})) {
    HostMemoryOptions host;
    if (default_device().is_cpu()) host.link = sim.link;
    options.memories = {host_memory(host)};
    engine = offload_engine(std::move(options));
  }

  std::vector<Ticket> forward(int64_t layers) const {
    std::vector<Ticket> tickets;
    for (int64_t i = 0; i < layers; ++i) {
      sim.clock->pass_us(100);
      tickets.push_back(engine->put(tensor_of(i)));
    }
    return tickets;
  }

  void backward(std::vector<Ticket>& tickets) const {
    while (!tickets.empty()) {
      const auto value = static_cast<int64_t>(tickets.size()) - 1;
      CHECK(is_tensor_of(tickets.back()->get(), value));
      sim.clock->pass_us(200);
      tickets.pop_back();
    }
  }

  void step(int64_t layers) const {
    std::vector<Ticket> tickets = forward(layers);
    backward(tickets);
  }
};

TEST_CASE("Copies that take less time than their layers cost none", "[offload][cpu]") {
  // 1 MB at 16 GB/s: 62.5 us, less than the 100 us of a forward and the 200 us of a backward.
  const Chain chain(16);
  chain.step(8);
  CHECK(chain.sim.clock->now_us() == (8 * 100 + 8 * 200));
  const OffloadStats stats = chain.engine->stats();
  CHECK(stats.left_bytes == 7 * kBytes);
  CHECK(stats.prefetched_count == 6);
  CHECK(stats.stayed_count == 2);  // the last; and the one before, which leaves as backward begins
  CHECK(stats.away_bytes == 0);
}

TEST_CASE("What has not left when backward comes stays", "[offload][cpu]") {
  // 1 MB at 2 GB/s takes 500 us each way. Of 8 layers, put at 100, 200... 800 us, the first leaves
  // from 200 to 700 us, the second from 700 us on. So only the first is away when backward begins
  // at 800 us; it is back at 1300 us, long before backward needs it.
  const Chain chain(2);
  chain.step(8);
  CHECK(chain.sim.clock->now_us() == 8 * 100 + 8 * 200);
  CHECK(chain.engine->stats().fetched_count == 1);
  CHECK(chain.engine->stats().stayed_count == 7);
}

TEST_CASE("A backward waits for a copy that nothing hides", "[offload][cpu]") {
  const Chain chain(2);
  std::vector<Ticket> tickets = chain.forward(2);
  chain.sim.clock->pass_us(1000);
  tickets.pop_back();
  chain.backward(tickets);
  CHECK(chain.sim.clock->now_us() == 2 * 100 + 1000 + 500 + 200);
}

TEST_CASE("A storage's memory goes when its copy is done", "[offload][cpu]") {
  const Chain chain(1);  // 1000 us for each copy
  at::Tensor tensor = tensor_of(1);
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(tensor.storage().getWeakStorageImpl());
  const Ticket first = chain.engine->put(tensor);
  tensor.reset();
  const Ticket second = chain.engine->put(tensor_of(2));
  CHECK_FALSE(memory.expired());
  CHECK(chain.engine->stats().leaving_bytes == kBytes);
  chain.sim.clock->pass_us(1000);
  const Ticket third = chain.engine->put(tensor_of(3));
  CHECK(memory.expired());
  CHECK(is_tensor_of(first->get(), 1));
}

TEST_CASE("What has left is gone before anything is fetched", "[offload][cpu]") {
  const Chain chain(0);
  MemoryMeter meter;
  const std::vector<Ticket> tickets = chain.forward(4);  // The last put lets the third leave.
  tickets.back()->get();
  CHECK(chain.engine->stats().prefetched_count == 3);
  CHECK(meter.peak_bytes(default_device()) == 4 * kBytes);
}

TEST_CASE("What somebody else has is not copied", "[offload]") {
  const Chain chain(0);
  const at::Tensor kept = tensor_of(1);
  const Ticket ticket = chain.engine->put(kept.detach());
  for (int64_t i = 0; i < 20; ++i) chain.engine->put(tensor_of(i));
  CHECK(chain.engine->stats().left_count == 0);
  CHECK(ticket->get().is_alias_of(kept));
}

TEST_CASE("A storage is moved once for all that share it", "[offload]") {
  const Chain chain(0);
  at::Tensor tensor = tensor_of(1).view({500, 500});
  const Ticket whole = chain.engine->put(tensor.t());
  const Ticket row = chain.engine->put(tensor.select(0, 3));
  const at::Tensor expected = tensor.t().clone();
  tensor.reset();
  const Ticket other = chain.engine->put(tensor_of(2));
  chain.sim.clock->pass_us(1);
  const at::Tensor again = whole->get();
  CHECK(again.equal(expected));
  CHECK(again.strides() == at::IntArrayRef{1, 500});
  CHECK(row->get().is_alias_of(again));
  CHECK(chain.engine->stats().left_count == 1);
  CHECK(chain.engine->stats().fetched_count == 1);
}

TEST_CASE("What is asked for twice comes twice", "[offload]") {
  const Chain chain(4);
  std::vector<Ticket> tickets = chain.forward(6);
  chain.sim.clock->pass_us(10000);
  for (int times = 0; times < 2; ++times) {
    for (int64_t i = 5; i >= 0; --i) {
      CHECK(is_tensor_of(tickets[static_cast<size_t>(i)]->get(), i));
    }
  }
  CHECK(chain.engine->stats().away_bytes == 5 * kBytes);
  tickets.clear();
  CHECK(chain.engine->stats().away_bytes == 0);
}

TEST_CASE("What is asked for again is what was put, though somebody has written what came",
          "[offload]") {
  const Chain chain(0);
  const std::vector<Ticket> tickets = chain.forward(2);
  chain.sim.clock->pass_us(1);
  chain.engine->put(tensor_of(2));
  const at::Tensor first = tickets[0]->get();
  const at::Tensor shared = tickets[0]->get();
  CHECK(shared.is_alias_of(first));
  first.add_(5);
  CHECK(shared._version() == 1);
  CHECK(is_tensor_of(tickets[0]->get(), 0));
}

TEST_CASE("Writes to what stayed are noticed by who has saved it again", "[offload]") {
  const Chain chain(0);
  const at::Tensor kept = tensor_of(1);
  const Ticket ticket = chain.engine->put(kept.detach());
  const at::Tensor given = ticket->get();
  kept.add_(1);
  CHECK(given._version() == 1);
}

TEST_CASE("A step is fetched in the order of the one before", "[offload][cpu]") {
  const Chain chain(16);
  const std::vector<size_t> order{3, 0, 5, 1, 4, 2};
  for (int step = 0; step < 3; ++step) {
    std::vector<Ticket> tickets = chain.forward(6);
    chain.engine->put(tensor_of(0));
    chain.sim.clock->pass_us(10000);
    const int64_t before = chain.engine->stats().prefetched_count;
    const double begin = chain.sim.clock->now_us();
    for (const size_t which : order) {
      CHECK(is_tensor_of(tickets[which]->get(), static_cast<int64_t>(which)));
      tickets[which] = nullptr;
      chain.sim.clock->pass_us(200);
    }
    if (step == 0) continue;
    CHECK(chain.engine->stats().prefetched_count - before == 5);
    CHECK(chain.sim.clock->now_us() - begin == (62.5 + 6 * 200));
  }
}

TEST_CASE("No more is fetched ahead, and on its way out, than is allowed", "[offload][cpu]") {
  const Chain chain(1, {.min_bytes = 0, .prefetch_bytes = 2 * kBytes, .max_leaving_bytes = kBytes});
  std::vector<Ticket> tickets = chain.forward(8);
  // A copy takes 1000 us, and only one may be under way: the forward waits for those before it.
  CHECK(chain.sim.clock->now_us() == (200 + 6 * 1000));
  CHECK(chain.engine->stats().leaving_bytes == kBytes);
  chain.sim.clock->pass_us(1000);
  tickets.back()->get();
  CHECK(chain.engine->stats().prefetched_count == 2);
  CHECK(chain.engine->stats().fetched_bytes == 2 * kBytes);
}

TEST_CASE("Small storages, other devices and what is over the limit stay", "[offload]") {
  const auto left_with = [](const OffloadOptions& options) {
    const Chain chain(0, options);
    chain.step(6);
    return chain.engine->stats().left_count;
  };
  const c10::Device other(default_device().is_cpu() ? c10::kCUDA : c10::kCPU);
  CHECK(left_with({}) == 0);  // smaller than 1 MiB
  CHECK(left_with({.min_bytes = 0}) == 5);
  CHECK(left_with({.min_bytes = kBytes + 1}) == 0);
  CHECK(left_with({.min_bytes = 0, .max_bytes = 2 * kBytes}) == 2);
  CHECK(left_with({.min_bytes = 0, .device = other}) == 0);
  CHECK(left_with({.min_bytes = 0, .device = default_device()}) == 5);
}

/// Host memory that fails on demand.
struct Failing final : OffloadMemory {
  struct Event final : CopyEvent {
    bool is_done() override { return true; }
    void wait() override { throw std::runtime_error("Input/output error"); }
  };
  struct Part final : Block {
    Part(Failing& memory, std::unique_ptr<Block> block)
        : memory_(memory), block_(std::move(block)) {}
    CopyEventPtr write(const at::Storage& device, const CopyEventPtr& after) override {
      if (memory_.fails_to_write) return std::make_shared<Event>();
      return block_->write(device, after);
    }
    CopyEventPtr read(const at::Storage& device, const CopyEventPtr& after) override {
      if (memory_.fails_to_read) return std::make_shared<Event>();
      return block_->read(device, after);
    }

   private:
    Failing& memory_;
    std::unique_ptr<Block> block_;
  };

  std::string name() const override { return "disk"; }
  std::unique_ptr<Block> take(int64_t bytes, c10::Device device) override {
    return std::make_unique<Part>(*this, host->take(bytes, device));
  }
  int64_t system_bytes() const override { return host->system_bytes(); }
  CopyLink& link() override { return host->link(); }

  std::shared_ptr<OffloadMemory> host =
      default_device().is_cpu() ? host_memory({.link = virtual_link({}).link}) : host_memory();
  bool fails_to_write = false;
  bool fails_to_read = false;
};

std::vector<Ticket> put_three(OffloadEngine& engine) {
  std::vector<Ticket> tickets;
  for (int64_t i = 0; i < 3; ++i) tickets.push_back(engine.put(tensor_of(i)));
  return tickets;
}

void check_three(const std::vector<Ticket>& tickets) {
  for (int64_t i = 2; i >= 0; --i) CHECK(is_tensor_of(tickets[static_cast<size_t>(i)]->get(), i));
}

TEST_CASE("What a memory fails to write goes to the next one, or stays", "[offload]") {
  const auto failing = std::make_shared<Failing>();
  failing->fails_to_write = true;
  const bool has_next = GENERATE(false, true);
  OffloadOptions options{.memories = {failing}, .min_bytes = 0};
  if (has_next) options.memories.push_back(host_memory());
  const auto engine = offload_engine(options);
  const Silence warnings;
  std::vector<Ticket> tickets = put_three(*engine);
  check_three(tickets);
  tickets.clear();
  tickets = put_three(*engine);
  check_three(tickets);
  CHECK(engine->stats().full_count == (has_next ? 0 : 4));
  CHECK(warnings.texts().size() == (has_next ? 0 : 1));
  if (has_next) return;
  CHECK_THAT(warnings.texts().front(),
             ContainsSubstring("expected room in disk, got none, disk failed: Input/output error"));
}

TEST_CASE("What a memory fails to read is an error, and the next step is right", "[offload]") {
  const auto failing = std::make_shared<Failing>();
  const auto engine = offload_engine({.memories = {failing}, .min_bytes = 0, .prefetch_bytes = 0});
  {
    const std::vector<Ticket> tickets = put_three(*engine);
    failing->fails_to_read = true;
    CHECK_THROWS_WITH(tickets[0]->get(), ContainsSubstring("to give it back, got: Input/output"));
    CHECK_THROWS_WITH(tickets[0]->get(),
                      ContainsSubstring("region without a name (1000000 bytes)"));
  }
  failing->fails_to_read = false;
  const std::vector<Ticket> tickets = put_three(*engine);
  check_three(tickets);
}

TEST_CASE("Without room it stays with one warning, or raises", "[offload][cpu]") {
  // The memory has room for one tensor.
  const VirtualLink sim = virtual_link({});
  const auto memory = host_memory({.max_bytes = 1 << 20, .link = sim.link});
  OffloadOptions options{.memories = {memory}, .min_bytes = 0};
  SECTION("stays") {
    const auto engine = offload_engine(options);
    const Silence warnings;
    for (int step = 0; step < 3; ++step) {
      const std::vector<Ticket> tickets = put_three(*engine);
      check_three(tickets);
    }
    CHECK(warnings.texts().size() == 1);
    CHECK(engine->stats().left_count == 3);
    CHECK(engine->stats().full_count == 3);
  }
  SECTION("raises") {
    options.when_full = WhenFull::kRaise;
    const auto engine = offload_engine(options);
    const Ticket first = engine->put(tensor_of(0));
    const Ticket second = engine->put(tensor_of(1));
    CHECK_THROWS_WITH(engine->put(tensor_of(2)),
                      ContainsSubstring("expected room in host memory, got none"));
    CHECK(is_tensor_of(second->get(), 1));
    CHECK(is_tensor_of(first->get(), 0));
  }
}

TEST_CASE("What is written after it was put is an error", "[offload]") {
  const auto engine = offload_engine({.min_bytes = 0});
  at::Tensor tensor = tensor_of(1);
  const Ticket ticket = engine->put(tensor.detach());
  tensor.add_(1);
  const Ticket again = engine->put(tensor.detach());
  tensor.reset();
  const Ticket other = engine->put(tensor_of(3));
  CHECK_THROWS_WITH(ticket->get(),
                    ContainsSubstring("got one at version 1 that was put at version 0"));
  CHECK(is_tensor_of(again->get(), 2));
}

TEST_CASE("What is written while it leaves is put anew", "[offload][cpu]") {
  const Chain chain(1);  // 1000 us for each copy
  const Ticket first = chain.engine->put(tensor_of(1));
  const Ticket other = chain.engine->put(tensor_of(2));
  at::Tensor here = first->get();
  chain.sim.clock->pass_us(1000);  // the copy has the values from before
  here.add_(5);
  const Ticket second = chain.engine->put(here);
  here.reset();
  for (int64_t i = 0; i < 4; ++i) {
    chain.engine->put(tensor_of(i));
    chain.sim.clock->pass_us(5000);
  }
  CHECK_THROWS_WITH(first->get(), ContainsSubstring("expected a tensor that is not written"));
  CHECK(is_tensor_of(second->get(), 6));
}

TEST_CASE("Options that make no sense are refused", "[offload]") {
  CHECK_THROWS_WITH(offload_engine({.memories = {nullptr}}), ContainsSubstring("got null"));
  CHECK_THROWS_WITH(offload_engine({.min_bytes = -1}), ContainsSubstring("min_bytes: expected 0"));
  CHECK_THROWS_WITH(offload_engine({.prefetch_bytes = -1}), ContainsSubstring("prefetch_bytes"));
  CHECK_THROWS_WITH(host_memory({.max_bytes = -1}), ContainsSubstring("max_bytes: expected 0"));
  CHECK_THROWS_WITH(sim_link({.gbps = -1}), ContainsSubstring("gbps: expected"));
  CHECK_THROWS_WITH(sim_link({.latency_us = -1}), ContainsSubstring("latency_us: expected"));
}

TEST_CASE("From the third step on nothing is taken from the system", "[offload][cpu]") {
  const VirtualLink sim = virtual_link({.gbps = 4});
  const auto memory = host_memory({.link = sim.link});
  const auto engine = offload_engine({.memories = {memory}, .min_bytes = 0});
  int64_t after_two = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<Ticket> tickets;
    for (int64_t i = 0; i < 10; ++i) {
      sim.clock->pass_us(100);
      tickets.push_back(engine->put(torch::ones({kBytes + i % 3 * 4096}, torch::kByte)));
    }
    for (; !tickets.empty(); tickets.pop_back()) {
      tickets.back()->get();
      sim.clock->pass_us(200);
    }
    if (step == 1) after_two = memory->system_bytes();
  }
  CHECK(after_two > 0);
  CHECK(memory->system_bytes() == after_two);
}

TEST_CASE("Steps of changing sizes take at most twice what one needs", "[offload][cpu]") {
  const VirtualLink sim = virtual_link({});
  const auto memory = host_memory({.link = sim.link});
  const auto engine = offload_engine({.memories = {memory}, .min_bytes = 0});
  int64_t most = 0;
  for (int64_t step = 0; step < 60; ++step) {
    const int64_t bytes = kBytes * (10 + step * 7 % 60) / 10;
    most = std::max(most, 3 * (bytes + 4096));  // the last of four tensors stays
    std::vector<Ticket> tickets;
    for (int64_t i = 0; i < 4; ++i)
      tickets.push_back(engine->put(torch::ones({bytes}, torch::kByte)));
    for (; !tickets.empty(); tickets.pop_back()) tickets.back()->get();
    CHECK(memory->system_bytes() <= 2 * most);
  }
}

TEST_CASE("Threads share an engine", "[offload][threads]") {
  const auto engine = offload_engine({.min_bytes = 0, .prefetch_bytes = 3 * kBytes});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (int64_t step = 0; step < 20; ++step) {
        std::vector<Ticket> tickets;
        const int64_t first = step * 100 + static_cast<int64_t>(thread) * 10000;
        for (int64_t i = 0; i < 6; ++i) tickets.push_back(engine->put(tensor_of(first + i)));
        for (int64_t i = 5; i >= 0; --i)
          wrong[thread] += is_tensor_of(tickets[static_cast<size_t>(i)]->get(), first + i) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
  CHECK(engine->stats().away_bytes == 0);
  CHECK(engine->stats().leaving_bytes == 0);
}

// AddressSanitizer's allocator may hold a mutex at a fork; the child would then wait for ever when
// it frees memory.
#ifndef __SANITIZE_ADDRESS__
/// True if a forked process can use the memory, and then ends.
bool takes_in_forked_process(OffloadMemory& memory) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends the child if it hangs
    const bool has_room = memory.take(kBytes, c10::kCPU) != nullptr;
    ::_exit(has_room ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}

TEST_CASE("A forked process can destroy host memory whose threads wait for work", "[offload]") {
  std::shared_ptr<OffloadMemory> memory = host_memory();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The threads have begun to wait.
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends the child if it hangs
    memory.reset();
    ::_exit(0);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("A forked process frees what its parent is still copying", "[offload][cpu]") {
  const auto memory = host_memory({.link = sim_link({.latency_us = 2e5})});
  const auto engine = offload_engine({.memories = {memory}, .min_bytes = 0});
  std::vector<Ticket> tickets = put_three(*engine);  // The last put lets the second leave.
  REQUIRE(engine->stats().leaving_bytes == 2 * kBytes);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends the child if it hangs
    tickets.clear();
    ::_exit(engine->stats().device_bytes == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("A forked process has host memory, whatever threads were doing", "[offload]") {
  const auto memory = host_memory();
  std::atomic<bool> ends = false;
  std::thread thread([&] {
    while (!ends) memory->take(kBytes, c10::kCPU);
  });
  int right = 0;
  for (int i = 0; i < 60; ++i) right += takes_in_forked_process(*memory) ? 1 : 0;
  ends = true;
  thread.join();
  CHECK(right == 60);
}
#endif

}  // namespace
}  // namespace remat
