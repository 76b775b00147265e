// SPDX-License-Identifier: BSD-3-Clause

// The named calls of forwards, collected in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/tape/export.h>

namespace remat {

/// A named call, or a scope that the user has named.
struct CallTraceEntry {
  std::string name;  ///< With the prefixes of the NameScopes around a call.
  bool is_scope = false;
  Policy policy = Policy::kRecompute;   ///< Of a call.
  std::string metadata;                 ///< Of a scope; may be empty.
  std::vector<CallTraceEntry> entries;  ///< What a scope encloses, in order.
};

/// Collects, until stop() or its end, the named calls that forwards make: not those of replays, nor
/// SAVE calls inside SAVE calls, which nobody sees. Several may collect at the same time.
class REMAT_API CallTrace {
 public:
  /// Tells whether a call on the present thread is to be collected.
  using Applies = std::function<bool()>;

  /// Without `applies`: the calls of the thread that makes it.
  explicit CallTrace(Applies applies = {});
  CallTrace(const CallTrace&) = delete;
  CallTrace& operator=(const CallTrace&) = delete;
  ~CallTrace();

  /// Collects no more.
  void stop();

  /// Calls up to the matching end_scope() belong to the scope. False, and nothing to end, in a
  /// replay. Throws ValueError if the name is empty.
  bool begin_scope(std::string name, std::string metadata = {});
  void end_scope();

  std::vector<CallTraceEntry> entries() const;

  /// A line for each entry, indented by its scopes: "attention: save", "layer [causal]".
  std::string str() const;

 private:
  class Collector;
  std::shared_ptr<Collector> collector_;
};

}  // namespace remat
