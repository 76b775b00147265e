// SPDX-License-Identifier: BSD-3-Clause

// What regions hold, by the choices of the user that hold it.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <remat/inspect/memory_report.h>
#include <remat/tape/region.h>

#include "held_tensors.h"

namespace remat {

/// Takes what regions hold, tensor by tensor, and says what would let go of how much. Of a thread.
///
/// Note [What a change frees]: a tensor is held as long as none of its choices is changed (a result
/// of a SAVE call goes with the rule that SAVEs it, and with the op that reads it), a storage as
/// long as one of the tensors on it is. What has to be kept instead then is not known, nor is what
/// the program holds: the numbers are estimates, most often too high.
class MemoryChanges {
 public:
  /// `region` holds it.
  void add(const Region& region, const HeldTensor& held);

  /// The most valuable ones, by devices, each the best one after those before it.
  std::vector<MemoryChange> best() const;

 private:
  using Numbers = c10::SmallVector<size_t, 2>;

  /// One choice on one device.
  struct Choice {
    MemoryChange shown;
    std::set<std::string> names;  ///< Of its calls, if it is about calls.
    std::unordered_set<const Region*> regions;
  };
  /// A storage, and for each tensor on it the choices that hold it.
  struct Holding {
    size_t bytes = 0;
    std::string device;
    std::vector<Numbers> tensors;
  };
  /// What choosing one more would bring.
  struct Gain {
    size_t bytes = 0;    ///< Freed.
    size_t touched = 0;  ///< Of storages that others hold, too.
    size_t alone = 0;    ///< Freed without the others: it may stand in for one of them.
    bool operator<(const Gain& other) const {
      return std::tie(bytes, touched, alone) < std::tie(other.bytes, other.touched, other.alone);
    }
  };
  using Chosen = std::vector<bool>;
  /// The storages that a choice may let go of.
  struct Reach {
    std::vector<const Holding*> holdings;
    size_t alone = 0;
  };

  struct Reason;
  static std::vector<Reason> reasons_of_call(const Region& region, const HeldTensor& held);
  static std::vector<Reason> reasons_of(const Region& region, const HeldTensor& held);

  size_t number_of(const Reason& reason, const std::string& device);
  void hold(const HeldStorage& storage, const std::string& device, const Numbers& choices);
  static bool is_freed(const Holding& holding, const Chosen& chosen);
  std::vector<Reach> reaches() const;
  static Gain gain(size_t choice, const Reach& reach, Chosen& chosen);
  void add_best(const std::string& device, const std::vector<Reach>& reaches,
                std::vector<MemoryChange>& all) const;
  MemoryChange shown(const Choice& choice) const;

  std::vector<Choice> choices_;
  std::unordered_map<std::string, size_t> by_key_;
  std::unordered_map<const void*, Holding> holdings_;
};

}  // namespace remat
