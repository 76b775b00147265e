// SPDX-License-Identifier: BSD-3-Clause

// Facts about ops, from their schemas or, where schemas do not say, from their names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Bits of OpFacts. The table of ops that have them, with reasons, is in op_facts.cpp.
enum class OpFact : uint32_t {
  kMetadata = 1U << 0U,  ///< Looks at sizes, strides and dtype only.
  /// A view whose kernel does not check the storage's size, so it runs even on freed storages.
  kKeepsStrides = 1U << 1U,
  kShowsAll = 1U << 2U,           ///< A view of its argument with the same sizes and strides
  kShowsAllWithSizes = 1U << 3U,  ///< kShowsAll if argument 1 equals the tensor's sizes
  kUndeclaredView = 1U << 4U,     ///< A view that its schema does not declare
  /// Its result shares memory with an argument but has its own version counter.
  kOtherVersions = 1U << 5U,
  kChangesMemory = 1U << 6U,    ///< Resizes a tensor's memory or exchanges it for other memory
  kUninitialised = 1U << 7U,    ///< Its result has no values yet
  kOverwrites = 1U << 8U,       ///< Writes all of its first argument, and reads none of it
  kOverwritesPart = 1U << 9U,   ///< Writes part of its first argument, and reads none of it
  kAccumulates = 1U << 10U,     ///< kOverwritesPart unless argument 3, `accumulate`, is true
  kFills = 1U << 11U,           ///< Writes an argument other than the first without reading it
  kLeavesGaps = 1U << 12U,      ///< Saves tensors for backward that it has only partly written
  kLeavesByteGaps = 1U << 13U,  ///< kLeavesGaps, for byte tensors only (workspaces)
  kHandsOut = 1U << 15U,        ///< The caller may read the argument's memory later, without an op
  kMakesTangents = 1U << 16U,   ///< Its result has a tangent (forward-mode AD)
  kWritesNoData = 1U << 14U,    ///< Marks an argument as written, but writes no data
};

/// The facts about one op.
class OpFacts {
 public:
  constexpr OpFacts() = default;
  constexpr OpFacts(OpFact fact) : bits_(static_cast<uint32_t>(fact)) {}  // NOLINT(*-explicit-*)
  constexpr bool has(OpFact fact) const { return (bits_ & static_cast<uint32_t>(fact)) != 0; }
  constexpr OpFacts operator|(OpFacts other) const { return OpFacts(bits_ | other.bits_); }

 private:
  explicit constexpr OpFacts(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

constexpr OpFacts operator|(OpFact a, OpFact b) {
  return OpFacts(a) | OpFacts(b);
}

/// The facts about `op`; none for an op that is not LibTorch's. Slow, so call it once per op.
REMAT_API OpFacts op_facts(const c10::OperatorName& op);

/// The op's name with its overload, "aten::add.Tensor".
REMAT_API std::string full_name(const c10::OperatorHandle& op);

/// True if a result is an alias of an argument that the op does not write.
REMAT_API bool returns_view(const c10::FunctionSchema& schema);

/// True if the op writes arguments, and its results, if it has any, are arguments that it writes.
REMAT_API bool returns_only_written(const c10::FunctionSchema& schema);

/// True for an op that is dispatched by a device argument, not by its tensors. Its composite kernel
/// makes a tensor on that device, and fills it by ops that reach the fallback.
REMAT_API bool chooses_device(const c10::FunctionSchema& schema);

}  // namespace remat
