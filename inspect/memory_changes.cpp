// SPDX-License-Identifier: BSD-3-Clause

// Finds the user's choices that hold each tensor, and how much each choice would free.
#include "held_tensors.h"

#include <c10/util/SmallVector.h>
#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <remat/engine/region_policy.h>
#include <remat/recording/region_labels.h>

#include "report_text.h"

namespace remat {
namespace {

constexpr size_t kMaxChanges = 16;  // per device

const char* const kCalls = "<calls>";  // in a reason; shown() replaces it by the calls' names

/// Index of the SAVE call whose policy must change to free the tensor. An argument that another
/// SAVE call made is also kept as a result of that call, the maker. With RECOMPUTE only in the call
/// that saved the argument, the maker would still keep it, so returns the maker.
size_t call_of(const HeldTensor& held) {
  if (held.kept && held.kept->maker != KeptTensor::kNoCall) return held.kept->maker;
  return held.call();
}

/// Why a tensor is held, in the user's words.
struct Reason {
  std::string key;     ///< Equal for reasons that the same change removes.
  std::string reason;  ///< Contains kCalls if the reason is about calls.
  std::string change;
  std::string call{};  ///< Name of the call, if the reason is about calls.
};

/// The reasons why a tensor of a call is held: the call keeps it, and something may read the
/// result.
std::vector<Reason> reasons_of_call(const Region& region, const HeldTensor& held) {
  const NamedCall& call = region.calls().records()[call_of(held)].call;
  const char* const policy = policy_name(call.policy);
  const bool can_offload = call.policy == Policy::kSave && !held.meta.device().is_cpu();
  const std::string instead =
      c10::str("RECOMPUTE instead of ", policy, can_offload ? ", or OFFLOAD" : "");
  const PolicyRule* const rule = region.policy() ? region.policy()->rule_of(call) : nullptr;
  // Propose no change, because these rules are part of every policy, not written by the user.
  if (rule && rule->source == "safe_defaults") return {};
  std::vector<Reason> reasons;
  std::string what;
  if (rule) {
    what = c10::str("rule ", rule->str());
    reasons.push_back({what, what, instead});
  } else if (call.is_op) {
    what = c10::str(policy, " of op ", PolicyTable::op_of_call(call.name));
    reasons.push_back({what, what, instead});
  } else {
    what = c10::str("call ", detail::folded_label(call.name), policy);
    reasons.push_back({what, c10::str(policy, " of call ", kCalls), instead, call.name});
  }
  const KeepReason* const kept = held.product ? &held.product->reason() : nullptr;
  if (!kept || kept->reader.empty() || call.is_op) return reasons;
  const bool is_bare = kept->kind == KeepReason::Kind::kBareRead;
  reasons.push_back({c10::str(what, " read by ", kept->reader, is_bare),
                     c10::str(kept->reader, is_bare ? "" : " of a RECOMPUTE call",
                              " reads the result of call ", kCalls),
                     is_bare ? "run it in that call, or in one of its own"
                             : "SAVE the call that reads it, or read it outside of the region",
                     call.name});
  return reasons;
}

std::vector<Reason> reasons_of(const Region& region, const HeldTensor& held) {
  switch (held.kind) {
    case HeldTensor::Kind::kArgument:
      return {{"arguments", "arguments of functions, for the replay",
               "fewer and larger regions, or auto_checkpoint() with a budget"}};
    case HeldTensor::Kind::kOfCut:
      return {{"cuts", "values between the parts of tapes that are cut",
               "cuts at other places, or a plan for a smaller budget"}};
    case HeldTensor::Kind::kOfTape:
      return {{"tapes", "values that tapes hold, since no record makes them",
               "make them in the region, or let others hold them"}};
    case HeldTensor::Kind::kWritten:
      return {{"written", "copies from before regions wrote memory from outside",
               "write it before or after the region, or out of place"}};
    case HeldTensor::Kind::kSaved:
    case HeldTensor::Kind::kResult:
      return reasons_of_call(region, held);
  }
  return {};
}

/// Note [What a change frees]: a choice is a rule, call or read that holds tensors. If several
/// choices hold a tensor (a result of a SAVE call is held by the rule that SAVEs it and by the op
/// that reads it), changing any one of them frees the tensor. A storage is freed with the last
/// tensor on it. The estimates are often too high, because the values that would be kept instead,
/// and the storages that the program holds, are unknown.
class MemoryChanges {
 public:
  void add(const Region& region, const HeldTensor& held) {
    const std::string device = held.meta.device().str();
    Numbers numbers;
    if (!held.is_leaf) {
      for (const Reason& reason : reasons_of(region, held)) {
        numbers.push_back(number_of(reason, device));
        Choice& choice = choices_[numbers.back()];
        ++choice.shown.tensors;
        choice.regions.insert(&region);
        if (!reason.call.empty()) choice.names.insert(reason.call);
      }
    }
    hold(held.storage, numbers);
  }

  std::vector<MemoryChange> best() const {
    std::set<std::string> devices;
    for (const Choice& choice : choices_) devices.insert(choice.shown.device);
    std::vector<MemoryChange> all;
    const std::vector<Holdings> holdings = holdings_of_choices();
    for (const std::string& device : devices) add_best(device, holdings, all);
    return all;
  }

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
    std::vector<Numbers> tensors;
  };
  /// The benefit of changing one more choice, compared in this order: bytes freed in addition,
  /// bytes of its storages that are not freed yet, bytes that the change frees alone.
  using Gain = std::tuple<size_t, size_t, size_t>;
  using Chosen = std::vector<bool>;
  using Holdings = std::vector<const Holding*>;

  size_t number_of(const Reason& reason, const std::string& device) {
    const auto [entry, is_new] =
        by_key_.emplace(c10::str(device, '\n', reason.key), choices_.size());
    if (is_new) {
      Choice choice;
      choice.shown.reason = reason.reason;
      choice.shown.change = reason.change;
      choice.shown.device = device;
      choices_.push_back(std::move(choice));
    }
    return entry->second;
  }

  void hold(const HeldStorage& storage, const Numbers& choices) {
    if (const auto* const parts = storage.parts()) {
      for (const HeldStorage& part : *parts) hold(part, choices);
      return;
    }
    const void* const address = storage.address();
    if (!address) return;
    Holding& holding = holdings_[address];
    holding.bytes = storage.size_bytes();
    holding.tensors.push_back(choices);
  }

  static bool is_freed(const Holding& holding, const Chosen& chosen) {
    return std::all_of(holding.tensors.begin(), holding.tensors.end(), [&](const Numbers& choices) {
      return std::any_of(choices.begin(), choices.end(), [&](size_t i) { return chosen[i]; });
    });
  }

  /// For each choice, the storages with tensors that the choice holds.
  std::vector<Holdings> holdings_of_choices() const {
    std::vector<Holdings> all(choices_.size());
    for (const auto& [address, holding] : holdings_) {
      for (const Numbers& choices : holding.tensors) {
        for (const size_t i : choices) {
          if (all[i].empty() || all[i].back() != &holding) all[i].push_back(&holding);
        }
      }
    }
    return all;
  }

  /// Returns the bytes that `choice` frees in addition to the choices in `chosen`, and the bytes of
  /// all its `holdings` that `chosen` alone does not free. Changes `chosen` only while it runs.
  static std::pair<size_t, size_t> freed_by(size_t choice, const Holdings& holdings,
                                            Chosen& chosen) {
    size_t freed = 0;
    size_t touched = 0;
    for (const Holding* const holding : holdings) {
      if (is_freed(*holding, chosen)) continue;
      touched += holding->bytes;
      chosen[choice] = true;
      if (is_freed(*holding, chosen)) freed += holding->bytes;
      chosen[choice] = false;
    }
    return {freed, touched};
  }

  MemoryChange shown(const Choice& choice) const {
    MemoryChange change = choice.shown;
    change.regions = choice.regions.size();
    if (choice.names.empty()) return change;
    const size_t calls = change.reason.rfind(kCalls);
    std::vector<std::string> names(choice.names.begin(), choice.names.end());
    std::sort(names.begin(), names.end(), naturally_less);
    change.reason.replace(calls, std::string(kCalls).size(),
                          c10::str("'", name_ranges(names), "'"));
    return change;
  }

  void add_best(const std::string& device, const std::vector<Holdings>& holdings,
                std::vector<MemoryChange>& all) const {
    Chosen none(choices_.size());
    Chosen chosen(choices_.size());
    size_t so_far = 0;
    for (size_t count = 0; count < kMaxChanges; ++count) {
      size_t best = choices_.size();
      Gain most;
      for (const auto i : c10::irange(choices_.size())) {
        if (chosen[i] || choices_[i].shown.device != device) continue;
        const auto [freed, touched] = freed_by(i, holdings[i], chosen);
        const Gain gain(freed, touched, freed_by(i, holdings[i], none).first);
        if (most < gain) std::tie(best, most) = std::make_pair(i, gain);
      }
      if (best == choices_.size()) return;
      chosen[best] = true;
      so_far += std::get<0>(most);
      MemoryChange change = shown(choices_[best]);
      change.bytes = std::get<2>(most);
      change.bytes_so_far = so_far;
      all.push_back(std::move(change));
    }
  }

  std::vector<Choice> choices_;
  std::unordered_map<std::string, size_t> by_key_;
  std::unordered_map<const void*, Holding> holdings_;
};

}  // namespace

std::vector<MemoryChange> best_changes(
    const std::vector<std::pair<const Region*, HeldTensor>>& held) {
  MemoryChanges changes;
  for (const auto& [region, tensor] : held) changes.add(*region, tensor);
  return changes.best();
}

}  // namespace remat
