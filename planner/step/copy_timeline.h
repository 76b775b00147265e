// SPDX-License-Identifier: BSD-3-Clause

// Simulation of an offload engine's copies, and of the time that compute waits for them.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <remat/policy/export.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// One event of a step, for values that may be offloaded.
struct CopyStep {
  enum class Kind : uint8_t {
    kCompute,  ///< Compute for `us`
    kPut,      ///< The engine gets the value
    kAlone,    ///< The program drops the value: from now on only the engine holds it
    kAsk,      ///< Backward asks for the value, and holds it from then on
    kDrop,     ///< Backward drops the value that it got
  };
  Kind kind = Kind::kCompute;
  int32_t value = -1;
  double us = 0;
};

struct CopyTimes {
  double waited_us = 0;    ///< Time that compute waits for copies
  double copied_us = 0;    ///< Time of copies, both ways
  int64_t left_bytes = 0;  ///< Bytes of copies out that have ended
  int64_t fetched_bytes = 0;
  int64_t away_bytes = 0;  ///< Most bytes that were offloaded, or being copied out, at once
};

/// Note [Simulated engine]
/// The rules are those of offload/mover_out.cpp and mover_in.cpp, for an engine that knows the
/// order of asks from an earlier step. When only the engine holds a value, the next put() sends the
/// value. A put() waits while more than max_leaving_bytes are being copied out. Each ask prefetches
/// the next values within prefetch_bytes. A test runs engine and simulation on equal steps.
class REMAT_API CopyTimeline {
 public:
  /// `bytes`: size of each value. Both arguments must outlive this object.
  CopyTimeline(const OffloadTerms& terms, const std::vector<int64_t>& bytes);

  CopyTimes run(const std::vector<CopyStep>& steps);

 private:
  enum class Where : uint8_t { kNowhere, kWaiting, kLeaving, kAway, kComing, kStays };
  struct Moved {
    Where where = Where::kNowhere;
    bool is_alone = false;
    bool is_next = false;  // prefetched while being copied out, so its memory stays
    bool has_left = false;
    int32_t held = 0;  // number of asks that hold the value
    size_t place = 0;
    double ends_us = 0;  // end of the value's last copy
  };
  struct Link {
    double out_free_us = 0;
    double in_free_us = 0;
    int64_t bytes = 0;
  };

  void put(int32_t value);
  void send_waiting();
  void send(int32_t value);
  void wait_for_leaving();
  void settle();
  void ask(size_t asked);
  void hand_over(int32_t value);
  void fetch(int32_t value);
  void forget_coming();
  void prefetch(size_t asked);
  void wait_until(double us);

  const OffloadTerms& terms_;
  const std::vector<int64_t>& bytes_;
  std::vector<Moved> moved_;
  std::vector<Link> links_;
  std::vector<int32_t> order_;  // order in which values are asked for, without repetitions
  std::vector<int32_t> waiting_;
  std::deque<int32_t> leaving_;
  double now_us_ = 0;
  int64_t leaving_bytes_ = 0;  // bytes of unfinished copies out
  int64_t away_bytes_ = 0;
  int64_t coming_bytes_ = 0;
  CopyTimes out_;
};

}  // namespace remat::detail
