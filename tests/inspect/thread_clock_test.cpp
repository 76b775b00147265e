// SPDX-License-Identifier: BSD-3-Clause

// Clocks of what a thread runs: thread_ns(), and frequent_thread_ns() for frequent calls.
#include <chrono>
#include <cstdint>
#include <thread>

#include <remat/inspect/thread_clock.h>

#include "support/catch.h"

TEST_CASE("A clock that is asked often counts what the thread runs, not what it sleeps",
          "[thread_clock]") {
  const int64_t exact = remat::thread_ns();
  const int64_t frequent = remat::frequent_thread_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(remat::frequent_thread_ns() - frequent < 100'000'000);
  int64_t newest = frequent;
  while (remat::thread_ns() - exact < 20'000'000) {
    const int64_t now = remat::frequent_thread_ns();
    REQUIRE(now >= newest);
    newest = now;
  }
  // The frequent clock may be ahead by the wall time that it has added, and the loop's last
  // iteration lies between the readings of the two clocks.
  const int64_t ran = remat::thread_ns() - exact;
  CHECK(newest - frequent <= ran + 100'000);
  CHECK(newest - frequent >= 19'000'000);
}

TEST_CASE("Each thread has a clock of its own", "[thread_clock]") {
  while (remat::frequent_thread_ns() < 20'000'000) {
  }
  int64_t of_other = 0;
  std::thread([&] { of_other = remat::frequent_thread_ns(); }).join();
  CHECK(of_other < 10'000'000);
}
