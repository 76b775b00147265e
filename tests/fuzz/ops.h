// SPDX-License-Identifier: BSD-3-Clause

// Ops on 4 x 4 tensors that a step of a random program may run: code and its source text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace remat::fuzz {

/// Size of both dimensions of all tensors in a program.
constexpr int64_t kSize = 4;

/// Number of parts (tensors) in a bank.
constexpr int64_t kParts = 6;

enum class Op {
  // Ops with one new result.
  kSin,
  kTanh,
  kRelu,
  kSoftmax,
  kLayerNorm,
  kMul,
  kAdd,
  kLerp,
  kMatmul,
  kWeight,
  kLinear,
  kAttention,
  kEinsum,
  kDropout,
  kRandom,
  kRrelu,  // may draw random numbers, but does not
  kNormal,
  kPermutation,
  kCat,
  kUnbind,
  kIndex,
  kClone,
  kWhere,
  kBranch,
  kDouble,
  kBfloat16,
  kOut,
  kNoGrad,
  kReadBuffer,
  kReadBank,
  kReadWholeBank,
  kReadLibrary,
  kLibraryFresh,
  kLibraryUnseenFresh,
  kRreluTraining,
  kLogSigmoid,
  kComplexScale,
  kComplexLerp,
  kComplexAdd,
  kComplexPad,
  kComplexFill,
  kComplexWhere,
  kComplexMatmul,
  kComplexConvolution,
  kComplexFresh,
  // Ops with two new results.
  kChunk,
  kTopk,
  kSort,
  kMax,
  kVarMean,
  kNativeLayerNorm,
  kLstmCell,
  kForeach,
  // Custom autograd functions in C++.
  kSquare,
  kSavesResult,
  kTwoResults,
  kInPlaceFunction,
  kWritesSaved,
  kWritesShared,
  // Hooks, and backwards inside the function.
  kHook,
  kHookLater,
  kInnerGrad,
  kInnerBackward,
  // Ops that return views.
  kTranspose,
  kReshape,
  kDetach,
  kWindow,
  kSplit,
  // Ops that write in place.
  kScaleInPlace,
  kAddInPlace,
  kCopyInPlace,
  kReluInPlace,
  kDropoutInPlace,
  kZeroInPlace,
  kSelectInPlace,
  kTransposeInPlace,
  kSliceInPlace,
  kForeachInPlace,
  kRreluInPlace,
  kRenormInPlace,
  kComplexInPlace,
  kLibraryMarked,
  kLibraryInPlace,
  kLibraryListInPlace,
  kLibraryFill,
  kLibraryUnseen,
  kWriteBuffer,
  kWriteColumn,
  kEmbedding,
  kTrainNorm,
  kLibraryBuffer,
  kLibraryListBuffer,
  kLibraryUnseenBuffer,
  kWriteBank,
  kWriteBankRow,
  kWriteBankColumn,
  kOpCount,  // number of ops that any device has
  // Ops between devices, which are not chosen when all is on the host.
  kToHost = kOpCount,
  kToDevice,
  kToSecond,
  kPinned,
  kFromPinned,
  kRandomHere,
  kRecordStream,
  kAllOpCount,
  // Steps that contain a block of steps.
  kRegion,
  kCall,
  kScope,
  // values[a] itself: shrinking puts it in the place of other steps.
  kSame,
};

struct Operands {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor& w;  // a parameter that the program closes over
  const at::Tensor& buffer;
  const at::Tensor& bank;  // a buffer of several parts, of which one is read or written
  int64_t part;            // index of that part
};

enum class Effect {
  kMakes,
  kMakesViews,  // returns views of a new tensor, which no in-place op may write
  kIsView,      // returns a view of a
  kWrites,      // writes a
  kReadsBuffer,
  kWritesBuffer,
  kReadsBank,
  kWritesBank,
  kGoesBack,  // runs a backward inside
  kHooksArgument,
};

struct OpInfo {
  Op op;
  Effect effect;
  size_t results;          // r, s
  std::string_view saves;  // letters of a, b, r that autograd saves
  std::string_view cpp;
  std::string_view python;
  void (*run)(const Operands& operands, at::Tensor& r, at::Tensor& s);
};

const OpInfo& info(Op op);

/// True for a custom function whose backward writes what it has saved.
inline bool writes_in_backward(Op op) {
  return op == Op::kWritesSaved || op == Op::kWritesShared;
}

/// A type or function that the text of ops uses by `name`.
struct Helper {
  std::string_view name;
  std::string_view cpp;
  std::string_view python;
};

std::span<const Helper> helpers();

}  // namespace remat::fuzz
