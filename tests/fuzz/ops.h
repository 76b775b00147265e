// SPDX-License-Identifier: BSD-3-Clause

// What a step of a random program may do to 4 x 4 tensors: code that runs, and its text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace remat::fuzz {

/// Side of all tensors of a program.
constexpr int64_t kSize = 4;

/// How many of these a bank has.
constexpr int64_t kParts = 6;

enum class Op {
  // Fresh results.
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
  kRrelu,  // may draw, and does not
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
  // Two of them.
  kChunk,
  kTopk,
  kSort,
  kMax,
  kVarMean,
  kNativeLayerNorm,
  kLstmCell,
  kForeach,
  // Functions of C++.
  kSquare,
  kSavesResult,
  kTwoResults,
  kInPlaceFunction,
  kWritesSaved,
  // Hooks and backwards inside.
  kHook,
  kHookLater,
  kInnerGrad,
  kInnerBackward,
  // Views.
  kTranspose,
  kReshape,
  kDetach,
  kWindow,
  kSplit,
  // Writes.
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
  kOpCount,  // of those that any device has
  // Between devices: not drawn on the host.
  kToHost = kOpCount,
  kToDevice,
  kToSecond,
  kPinned,
  kFromPinned,
  kRandomHere,
  kRecordStream,
  kAllOpCount,
  // Steps with a block of steps.
  kRegion,
  kCall,
  kScope,
  // values[a] itself: what shrinking puts in the place of other steps.
  kSame,
};

/// What an op works on.
struct Operands {
  const at::Tensor& a;
  const at::Tensor& b;
  const at::Tensor& w;       // a parameter that the program closes over
  const at::Tensor& buffer;  // a buffer
  const at::Tensor& bank;    // and one of which parts are read and written,
  int64_t part;              // such as this one
};

enum class Effect {
  kMakes,
  kMakesViews,  // of a tensor of its own, which no in-place op may write
  kIsView,      // of a
  kWrites,      // a
  kReadsBuffer,
  kWritesBuffer,
  kReadsBank,
  kWritesBank,
  kGoesBack,  // a backward inside
  kHooksArgument,
};

struct OpInfo {
  Op op;
  Effect effect;
  size_t results;          // r, s
  std::string_view saves;  // which of a, b, r autograd keeps
  std::string_view cpp;
  std::string_view python;
  void (*run)(const Operands& operands, at::Tensor& r, at::Tensor& s);
};

const OpInfo& info(Op op);

/// A type or function that the text of ops uses by `name`.
struct Helper {
  std::string_view name;
  std::string_view cpp;
  std::string_view python;
};

std::span<const Helper> helpers();

}  // namespace remat::fuzz
