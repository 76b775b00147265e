// SPDX-License-Identifier: BSD-3-Clause

// Settings of the stand-in from the environment: its devices, the order of its streams and the
// speeds of its virtual clock.
#pragma once

#include <cstddef>

namespace cuda_stand_in {

inline constexpr int kMaxDevices = 16;

// The order in which streams run their entries.
enum class Order {
  kEager,      // each entry runs when it is enqueued
  kLazy,       // an entry runs when somebody waits for it
  kSideLazy,   // the default streams are eager, all others lazy
  kSideEager,  // the default streams are lazy, all others eager
  kRandom,     // after each entry, some streams run some of their entries
};

// Returns the order of that name. Ends the process with a message if there is none.
Order order_named(const char* name);

struct Settings {
  size_t capacity_bytes;  // memory of each device
  int devices;
  int compute_capability;  // 80 means 8.0
  Order order;
  unsigned seed;  // seed of the random order
  double launch_ns;
  double thread_ns;  // per thread of a kernel's grid
  double flops_per_ns;
  double link_bytes_per_ns;    // between host and device, and between devices
  double memory_bytes_per_ns;  // within a device
  bool queries_follow_clock;
  int polls;   // queries of one event that say "not ready" before a lazy stream runs
  int poison;  // byte that new device memory is filled with; negative: it is zero
  bool log;
};

Settings settings_of_environment();

}  // namespace cuda_stand_in
