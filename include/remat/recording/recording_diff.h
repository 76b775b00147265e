// SPDX-License-Identifier: BSD-3-Clause

// The first op in which two runs of a program, or a replay and its forward, differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// The likely reason that two ops differ.
enum class DifferenceCause : uint8_t {
  kBranch,         ///< The ops differ from this op on
  kTraining,       ///< Different ops, one of which is a dropout or a normalisation
  kCast,           ///< Different ops, one of which is a cast
  kOrder,          ///< Equal ops in another order
  kExtraOp,        ///< The second sequence has additional ops
  kMissingOp,      ///< The first sequence has additional ops
  kDtype,          ///< Dtype of a tensor
  kDevice,         ///< Device of a tensor
  kShape,          ///< Shape of a tensor, or a list of sizes
  kLayout,         ///< Strides or offset of a tensor, or a number that a view takes
  kRequiresGrad,   ///< requires_grad of a tensor
  kInsideTensor,   ///< Another tensor made by the function or program
  kOutsideTensor,  ///< Another tensor from outside of the function or program
  kNumber,
  kFlag,
  kOptional,    ///< An argument that is missing on one side, or a list of another length
  kText,        ///< A string, such as a mode
  kUnrecorded,  ///< The replay threw in the op, and all that is recorded of both ops is equal
};
constexpr size_t kDifferenceCauses = 18;

/// The likely cause as a sentence: "A flag differs, such as training."
REMAT_API const char* cause_text(DifferenceCause cause);

struct RecordingDifference {
  static constexpr size_t kNone = static_cast<size_t>(-1);

  DifferenceCause cause = DifferenceCause::kBranch;
  uint32_t thread = 0;    ///< Number of the thread, in the order in which threads begin
  std::string region;     ///< Label of the innermost region around the op; "": none
  size_t replay = kNone;  ///< Index of the replay in Recording::replays
  size_t number = 0;      ///< Number of the op, from 0, as in "of op 3" of first_words
  size_t first = kNone;   ///< Index in the first recording's ops; kNone: there are no more ops
  size_t second = kNone;  ///< Index in the second recording's ops; kNone: there are no more ops
  /// The op in words: "aten::mul.Tensor(float32 [4] on cpu of op 3, float32 [4] on cpu from outside
  /// #1)"; or "the end".
  std::string first_words;
  std::string second_words;
  std::string first_line;  ///< "model.py:12 forward"; "": not recorded
  std::string second_line;
  std::vector<std::string> before;  ///< Equal ops just before, in words, oldest first
};

/// Compares two runs of a program, thread by thread in the order in which threads begin: first the
/// ops outside of regions and in forwards, in order, then those in backward. Replays are compared
/// if both runs have the same ones. Times and addresses are ignored.
REMAT_API std::optional<RecordingDifference> first_difference(const Recording& a,
                                                              const Recording& b);

/// For each replay by a function that differs from its forward, returns the first op that differs.
/// A replay may end early, when all that backward needs is there; this is no difference. Ops of
/// SAVE and OFFLOAD calls, views, and casts of weights are not compared.
REMAT_API std::vector<RecordingDifference> replay_differences(const Recording& recording);

}  // namespace remat
