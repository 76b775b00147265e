// SPDX-License-Identifier: BSD-3-Clause

// Streams as queues without threads: an entry runs only when somebody waits for it or the order
// says so, so that every run is the same.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "settings.h"

namespace cuda_stand_in {

struct Stream {
  int id;
  int device;
  bool is_default;
  bool syncs_with_default;  // created without cudaStreamNonBlocking
  int priority;
  std::deque<std::function<void()>> queue;
  uint64_t enqueued = 0;
  uint64_t done = 0;
  double free_at_ns = 0;  // on the virtual clock
  int polls = 0;

  bool is_idle() const { return done == enqueued; }
};

class Streams {
 public:
  explicit Streams(const Settings& settings);

  Stream& create(int device, unsigned flags, int priority);

  // The stream of a handle. Handle 0 and its two special values are the default stream of
  // `current_device`.
  Stream& of(cudaStream_t handle, int current_device);

  // Adds an entry, then runs some entries as the order says. An empty function is an entry that
  // does nothing.
  void enqueue(Stream& stream, std::function<void()> run);

  // Runs the stream's first `up_to` entries, as far as they have not run.
  void run(Stream& stream, uint64_t up_to);

  void run_device(int device);
  void run_all();

  void set_order(Order order, unsigned seed);
  uint64_t pending() const;

  // Returns when the last entry of a device's streams ends on the virtual clock.
  double device_free_at_ns(int device) const;

  // For a forked child: drops all entries, since they belong to the parent.
  void forget_work();

 private:
  void wait_for_default_streams(Stream& stream);
  void add_wait(Stream& stream, Stream& other);
  void run_as_ordered(Stream& stream);
  void run_some_at_random();

  Order order_;
  std::mt19937 random_;
  // All streams in order of creation. A destroyed stream stays, since events may name it.
  std::vector<std::unique_ptr<Stream>> all_;
};

}  // namespace cuda_stand_in
