// SPDX-License-Identifier: BSD-3-Clause

// Says which parts of a block are named calls, and with which policy.
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

/// A rule that names the parts of a block.
struct Pattern {
  std::string name;
  /// Returns the kind of call for part number `part`; nullopt for a bare one.
  std::optional<CallKind> (*kind_of)(size_t part);
  /// Kind of the call around the whole block, if there is one.
  std::optional<CallKind> around{};
  void (*set_options)(CheckpointOptions&) = [](CheckpointOptions&) {};

  /// True if replays leave out some part.
  bool saves() const;

  /// Wraps `fn` as part `number` of a block.
  template <class F>
  auto part(size_t number, F fn) const {
    return [kind = kind_of(number), name = "part " + std::to_string(number),
            fn = std::move(fn)](auto&&... args) { return called(kind, name, fn, args...); };
  }

  /// Makes a block from a function of its inputs.
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

/// Names no part: the pattern of plain runs.
const Pattern& nothing_named();

/// Makes each block a region. Its calls have names that begin with the region's position, and so
/// are unique, as `Keep::kAllRegions` needs.
Wrap checkpointed(const Pattern& pattern);

}  // namespace remat::matrix
