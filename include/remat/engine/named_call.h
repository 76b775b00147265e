// SPDX-License-Identifier: BSD-3-Clause

// A named call as its caller describes it, and what it returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/policy/policy.h>

namespace remat {

/// A caller's description of a named call.
struct NamedCall {
  std::string name;
  Policy policy = Policy::kRecompute;
  Keep keep = Keep::kInnermostRegion;
  /// Names that reports use for the tensors that autograd saves in the call, in order; may be
  /// empty.
  std::vector<std::string> saved_names{};
  /// True if the call is a single op that the region's policy has made a named call.
  bool is_op = false;
  /// For a collective, the op's name with the prefix of the NameScope, by which outer regions
  /// number their collectives. Otherwise empty.
  std::string collective{};

  /// True if a replay does not run the call's function.
  bool is_saved() const { return policy != Policy::kRecompute; }

  /// A hash of name and policy.
  REMAT_API uint64_t hash() const;

  /// "call 'attention' (SAVE)"
  REMAT_API std::string str() const;
};

/// Results of a named call. `tensors`: the result tensors in order. `holder`: the structure that
/// contained the tensors, without them; null if there is none. Only the code that made the call
/// reads the holder.
struct CallResults {
  c10::SmallVector<at::Tensor, 2> tensors;
  std::shared_ptr<const void> holder;
  /// The Work of a collective, which may go on writing after the call; otherwise None.
  c10::IValue work{};
};

/// How far autograd is with saving the tensors that a custom function has asked to save.
struct Saving {
  enum class State : uint8_t {
    kNotYet,  ///< Autograd will save the tensors later, unless the function fails.
    kMaybe,   ///< Not known: autograd may be saving them, or tensors of another function.
    kNow,     ///< Autograd is saving tensor `position` of `count`, or failed at it.
    kDone,    ///< Autograd has saved the tensors, or never will.
  };
  State state;
  size_t position = 0;
  size_t count = 0;
};
/// Returns how far the saving is now. Must be fast and must not throw, because ops call it.
using SavingState = std::function<Saving()>;

}  // namespace remat
