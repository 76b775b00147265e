// SPDX-License-Identifier: BSD-3-Clause

// The first op in which two runs of a program differ, or a replay from its forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Why two ops differ, most likely.
enum class DifferenceCause : uint8_t {
  kBranch,         ///< Other ops from there on
  kTraining,       ///< Another op, and one of both is dropout's or a normalisation's
  kCast,           ///< Another op, and one of both is a cast
  kOrder,          ///< The same ops in another order
  kExtraOp,        ///< The second has ops that the first has not
  kMissingOp,      ///< The first has ops that the second has not
  kDtype,          ///< Of a tensor
  kDevice,         ///< Of a tensor
  kShape,          ///< Of a tensor, or a list of sizes
  kLayout,         ///< Strides or offset of a tensor, or the number that a view takes
  kRequiresGrad,   ///< Of a tensor
  kInsideTensor,   ///< Another tensor that the function or program makes
  kOutsideTensor,  ///< Another tensor that it finds
  kNumber,
  kFlag,
  kOptional,    ///< An argument is given or not, or a list has another length.
  kText,        ///< Such as a mode
  kUnrecorded,  ///< The replay has thrown there, and what the recording has of both is equal.
};
constexpr size_t kDifferenceCauses = 18;

/// What is likely to be so, as a sentence: "A flag differs, such as training."
REMAT_API const char* cause_text(DifferenceCause cause);

struct RecordingDifference {
  static constexpr size_t kNone = static_cast<size_t>(-1);

  DifferenceCause cause = DifferenceCause::kBranch;
  OpPhase phase = OpPhase::kOutside;  ///< Of the second
  uint32_t thread = 0;                ///< The how manieth to begin; 0: the first.
  std::string region;                 ///< The label of the innermost around it; "": none.
  size_t replay = kNone;              ///< Of a replay, in Recording::replays
  size_t number = 0;                  ///< Of the op, from 0, where `of op n` counts too
  size_t first = kNone;               ///< In Recording::ops of the first; kNone: the end.
  size_t second = kNone;              ///< The same of the second
  /// "aten::mul.Tensor(float32 [4] on cpu of op 3, float32 [4] on cpu from outside #1)"; "the end".
  std::string first_words;
  std::string second_words;
  std::string first_line;  ///< "model.py:12 forward"; "": not recorded.
  std::string second_line;
  std::vector<std::string> before;  ///< Equal ops just before, in words, the last one last
};

/// Two runs of a program: what it does outside of regions and in their forwards, in order, then in
/// backward, thread by thread in the order in which threads begin. Replays count if both have the
/// same of them. Times and addresses do not count.
REMAT_API std::optional<RecordingDifference> first_difference(const Recording& a,
                                                              const Recording& b);

/// For each replay by a function that differs from its forward the first op that does. One that
/// stops early, as all that is needed is there, does not differ; of what a SAVE or OFFLOAD call
/// runs, views, and casts of weights nothing is compared.
REMAT_API std::vector<RecordingDifference> replay_differences(const Recording& recording);

}  // namespace remat
