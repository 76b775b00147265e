// SPDX-License-Identifier: BSD-3-Clause

// What is known of ops: by their schemas, and by their names where schemas do not say.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Bits. The table of ops that have them, and why, is op_facts.cpp.
enum class OpFact : uint32_t {
  kMetadata = 1U << 0U,      ///< Looks at sizes, strides and dtype only.
  kKeepsStrides = 1U << 1U,  ///< A view that needs no memory: one that as_strided() does not make.
  kShowsAll = 1U << 2U,      ///< A view of all of its tensor, as it is.
  kShowsAllWithSizes = 1U << 3U,  ///< The same, if its second argument is the tensor's sizes.
  kUndeclaredView = 1U << 4U,     ///< A view whose schema does not say so.
  kOtherVersions = 1U << 5U,  ///< Its result has the memory of an argument and versions of its own.
  kChangesMemory = 1U << 6U,  ///< Gives a tensor another size of memory, or another's memory.
  kUninitialised = 1U << 7U,  ///< Its result has no values yet.
  kOverwrites = 1U << 8U,     ///< Writes all of its first argument, and reads none of it.
  kOverwritesPart = 1U << 9U,   ///< The same of some of it.
  kAccumulates = 1U << 10U,     ///< kOverwritesPart, unless its argument 3, `accumulate`, is true.
  kFills = 1U << 11U,           ///< Writes an argument that it does not read, not its first one.
  kLeavesGaps = 1U << 12U,      ///< Saves for backward what it has not written all of.
  kLeavesByteGaps = 1U << 13U,  ///< The same of tensors of bytes: its workspace.
  kHandsOut = 1U << 15U,        ///< Who asks may go on to read its argument without an op.
  kMakesTangents = 1U << 16U,   ///< Its result has a tangent: forward-mode AD.
  kWritesNoData = 1U << 14U,    ///< Marks an argument as written, and notes something about it.
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

/// None of an op that is not LibTorch's own. Looks `op` up by its name: ask once per op.
REMAT_API OpFacts op_facts(const c10::OperatorName& op);

/// "aten::add.Tensor"
REMAT_API std::string full_name(const c10::OperatorHandle& op);

/// True if a result is an alias of an argument that the op does not write.
REMAT_API bool returns_view(const c10::FunctionSchema& schema);

/// True if every result is an argument that the op writes, and at least one argument is written. An
/// op without results counts.
REMAT_API bool returns_only_written(const c10::FunctionSchema& schema);

/// True if an argument says on which device the result is made.
REMAT_API bool chooses_device(const c10::FunctionSchema& schema);

}  // namespace remat
