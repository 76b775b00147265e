// SPDX-License-Identifier: BSD-3-Clause

// Which parts of a block are named calls, and of which policy.
#pragma once

#include <remat/remat.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "matrix/models.h"

namespace remat::matrix {

struct CallKind {
  Policy policy;
  Keep keep = Keep::kInnermostRegion;
};

/// How a block's parts are named.
struct Pattern {
  std::string name;
  /// Of the part with this number; nothing for a bare one.
  std::optional<CallKind> (*kind_of)(size_t part);
  /// Of the block as a whole.
  std::optional<CallKind> around{};
  void (*set_options)(CheckpointOptions&) = [](CheckpointOptions&) {};

  /// True if some part is left out of replays.
  bool saves() const;

  /// `fn` as part `number` of a block.
  template <class F>
  auto part(size_t number, F fn) const {
    return [kind = kind_of(number), name = "part " + std::to_string(number),
            fn = std::move(fn)](auto&&... args) { return called(kind, name, fn, args...); };
  }

  /// A block, from a function that is given its inputs.
  template <class F>
  Block block(F fn) const {
    return [kind = around, fn = std::move(fn)](const Tensors& inputs) -> Tensors {
      return called(kind, "block", fn, inputs);
    };
  }

 private:
  template <class F, class... Args>
  static std::invoke_result_t<const F&, Args&...> called(const std::optional<CallKind>& kind,
                                                         const std::string& name, const F& fn,
                                                         Args&... args) {
    if (!kind) return std::invoke(fn, args...);
    return native_op(std::cref(fn), name, kind->policy, kind->keep)(args...);
  }
};

const std::vector<Pattern>& patterns();

/// No part is named: the pattern of plain runs.
const Pattern& nothing_named();

/// Each block is a region in which names begin with its place, as `Keep::kAllRegions` wants it.
Wrap checkpointed(const Pattern& pattern);

}  // namespace remat::matrix
