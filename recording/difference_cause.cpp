// SPDX-License-Identifier: BSD-3-Clause

// The likely causes of differences between recordings, in the words of OpLog::likely_cause() in a
// ReplayMismatch.
#include <remat/recording/recording_diff.h>

namespace remat {

const char* cause_text(DifferenceCause cause) {
  switch (cause) {
    case DifferenceCause::kBranch:
      return "The function branches on state or on data that has changed.";
    case DifferenceCause::kTraining:
      return "A training flag or a probability differs, or the function branches on state or on "
             "data that has changed.";
    case DifferenceCause::kCast:
      return "Autocast or a cast differs.";
    case DifferenceCause::kOrder:
      return "The same ops come in another order: one that is not fixed (a set, a random choice).";
    case DifferenceCause::kExtraOp:
      return "The second calls an op more than the first.";
    case DifferenceCause::kMissingOp:
      return "The second calls fewer ops than the first. If it is a replay that has thrown, its "
             "error "
             "may be of an op that is not recorded, such as a number that is made a tensor.";
    case DifferenceCause::kDtype:
      return "A dtype differs: autocast, a cast or the default dtype has changed.";
    case DifferenceCause::kDevice:
      return "A device differs: a tensor or module has been moved.";
    case DifferenceCause::kShape:
      return "A shape differs: a cache that has grown, or a size taken from changed state.";
    case DifferenceCause::kLayout:
      return "Another part of a tensor is read, or in another order: an index or a layout depends "
             "on state that has changed.";
    case DifferenceCause::kRequiresGrad:
      return "requires_grad differs: a parameter has been frozen or unfrozen.";
    case DifferenceCause::kInsideTensor:
      return "Another tensor is read that the function makes: which one depends on state that has "
             "changed, or on an order that is not fixed (a set, a random choice).";
    case DifferenceCause::kOutsideTensor:
      return "Another tensor is read: a weight or module that depends on state, a cache that was "
             "filled in the forward, or what the function has assigned to a variable outside.";
    case DifferenceCause::kNumber:
      return "A number differs: a counter, a schedule, or a random number not from a generator of "
             "LibTorch.";
    case DifferenceCause::kFlag:
      return "A flag differs, such as training.";
    case DifferenceCause::kOptional:
      return "An optional argument differs, or the length of a list.";
    case DifferenceCause::kText:
      return "A text differs: a mode or a setting has changed.";
    case DifferenceCause::kUnrecorded:
      return "What is recorded of both is equal, and the replay has thrown there: see its error. "
             "Values of tensors, random numbers and settings are not recorded.";
  }
  return "No cause.";
}

}  // namespace remat
