// SPDX-License-Identifier: BSD-3-Clause

// Groups what regions hold by the user's choices that hold it.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <remat/engine/region.h>
#include <remat/inspect/memory_report.h>

#include "held_tensors.h"

namespace remat {

/// Collects what regions hold, tensor by tensor, and estimates how much each change would free. Not
/// thread-safe.
///
/// Note [What a change frees]: a tensor is held until one of its choices is changed (a result of a
/// SAVE call goes with the rule that SAVEs it, or with the op that reads it), and a storage as long
/// as a tensor on it is held. It is not known what must be kept instead, nor what the program
/// holds: the numbers are estimates, most often too high.
class MemoryChanges {
 public:
  /// Adds a tensor that `region` holds.
  void add(const Region& region, const HeldTensor& held);

  /// The most valuable changes by device; each is the best one given those before it.
  std::vector<MemoryChange> best() const;

 private:
  using Numbers = c10::SmallVector<size_t, 2>;

  /// One choice on one device.
  struct Choice {
    MemoryChange shown;
    std::set<std::string> names;  ///< Names of its calls, if the choice is about calls.
    std::unordered_set<const Region*> regions;
  };
  /// A storage, and for each tensor on it the choices that hold it.
  struct Holding {
    size_t bytes = 0;
    std::string device;
    std::vector<Numbers> tensors;
  };
  /// The benefit of adding one more choice: bytes freed, and bytes of storages that other choices
  /// hold too, and bytes freed by this choice alone, since it may replace one of the chosen.
  using Gain = std::tuple<size_t, size_t, size_t>;
  using Chosen = std::vector<bool>;
  using Holdings = std::vector<const Holding*>;

  struct Reason;
  static std::vector<Reason> reasons_of_call(const Region& region, const HeldTensor& held);
  static std::vector<Reason> reasons_of(const Region& region, const HeldTensor& held);

  size_t number_of(const Reason& reason, const std::string& device);
  void hold(const HeldStorage& storage, const std::string& device, const Numbers& choices);
  static bool is_freed(const Holding& holding, const Chosen& chosen);
  std::vector<Holdings> holdings_of_choices() const;
  static std::pair<size_t, size_t> freed_by(size_t choice, const Holdings& holdings,
                                            Chosen& chosen);
  void add_best(const std::string& device, const std::vector<Holdings>& holdings,
                std::vector<MemoryChange>& all) const;
  MemoryChange shown(const Choice& choice) const;

  std::vector<Choice> choices_;
  std::unordered_map<std::string, size_t> by_key_;
  std::unordered_map<const void*, Holding> holdings_;
};

}  // namespace remat
