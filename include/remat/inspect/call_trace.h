// SPDX-License-Identifier: BSD-3-Clause

// The named calls of forwards, collected in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/policy/policy.h>

namespace remat {

/// A named call, or a scope that the user opened with CallTrace::begin_scope().
struct CallTraceEntry {
  std::string name;  ///< Includes the prefixes of the NameScopes around a call
  bool is_scope = false;
  Policy policy = Policy::kRecompute;   ///< Policy of a call
  std::string metadata;                 ///< Metadata of a scope; may be empty
  std::vector<CallTraceEntry> entries;  ///< Entries that a scope encloses, in order
};

/// Collects the named calls that forwards make, from construction to stop() or destruction. Calls
/// made in replays, and SAVE calls inside SAVE calls, are left out. Several traces may collect at
/// the same time.
class REMAT_API CallTrace {
 public:
  /// True if a call on the current thread is to be collected.
  using Applies = std::function<bool()>;

  /// Without `applies`, the trace collects the calls of the constructing thread.
  explicit CallTrace(Applies applies = {});
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;
  ~CallTrace();

  void stop();

  /// Begins a scope that encloses the calls up to the matching end_scope(). In a replay returns
  /// false and begins nothing. Throws ValueError if the name is empty.
  bool begin_scope(std::string name, std::string metadata = {});
  void end_scope();

  std::vector<CallTraceEntry> entries() const;

  /// Text with one line per entry, indented by scope: "attention: save", "layer [causal]".
  std::string str() const;

 private:
  class Collector;
  std::shared_ptr<Collector> collector_;
};

}  // namespace remat
