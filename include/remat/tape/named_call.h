// SPDX-License-Identifier: BSD-3-Clause

// A named call, as its caller sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/tape/export.h>

namespace remat {

/// What the caller says of a named call.
struct NamedCall {
  std::string name;
  Policy policy = Policy::kRecompute;
  Keep keep = Keep::kInnermostRegion;
  /// Names of the tensors that autograd saves in the call, in order, for reports; empty: not named.
  std::vector<std::string> saved_names{};
  /// True if a rule of the region's policy has made the call of an op.
  bool is_op = false;
  /// For a collective its name with the NameScope, by which outer regions number it; else empty.
  std::string collective{};

  /// True if the function of the call does not run in a replay.
  bool is_saved() const { return policy != Policy::kRecompute; }

  /// A hash of name and policy.
  REMAT_API uint64_t hash() const;

  /// "call 'attention' (SAVE)"
  REMAT_API std::string str() const;
};

/// What a named call returns: its tensors in order, and `holder`, the structure that they were in,
/// without them. The holder is for the caller; null if the tensors are enough.
struct CallResults {
  c10::SmallVector<at::Tensor, 2> tensors;
  std::shared_ptr<const void> holder;
  /// For a collective, which may go on writing after the call, its Work; else None.
  c10::IValue work{};
};

/// Where autograd is with the tensors that a custom function has told it to save.
struct Saving {
  enum class State : uint8_t {
    kNotYet,  ///< It saves them later, if the function does not fail.
    kMaybe,   ///< Now or later: what it saves may be of others.
    kNow,     ///< It saves that at `position` of `count`, or has failed to.
    kDone,    ///< It has, or will not.
  };
  State state;
  size_t position = 0;
  size_t count = 0;
};
/// Asked while ops run: fast, and noexcept.
using SavingState = std::function<Saving()>;

}  // namespace remat
