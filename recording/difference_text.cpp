// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/difference_text.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include <remat/recording/printable.h>
#include <remat/recording/recording_diff.h>
#include <remat/recording/replay_links.h>

namespace remat {
namespace {

// Texts of the causes, in the order of DifferenceCause. A ReplayMismatch has similar texts from
// OpLog::likely_cause(), which knows further causes.
constexpr std::array<const char*, kDifferenceCauses> kCauses{
    "The function branches on state or on data that has changed.",
    "A training flag or a probability differs, or the function branches on state or on "
    "data that has changed.",
    "Autocast or a cast differs.",
    "The same ops come in another order: one that is not fixed (a set, a random choice).",
    "The second calls an op more than the first.",
    "The second calls fewer ops than the first. If it is a replay that has thrown, its "
    "error "
    "may be of an op that is not recorded, such as a number that is made a tensor.",
    "A dtype differs: autocast, a cast or the default dtype has changed.",
    "A device differs: a tensor or module has been moved.",
    "A shape differs: a cache that has grown, or a size taken from changed state.",
    "Another part of a tensor is read, or in another order: an index or a layout depends "
    "on state that has changed.",
    "requires_grad differs: a parameter has been frozen or unfrozen.",
    "Another tensor is read that the function makes: which one depends on state that has "
    "changed, or on an order that is not fixed (a set, a random choice).",
    "Another tensor is read: a weight or module that depends on state, a cache that was "
    "filled in the forward, or what the function has assigned to a variable outside.",
    "A number differs: a counter, a schedule, or a random number not from a generator of "
    "LibTorch.",
    "A flag differs, such as training.",
    "An optional argument differs, or the length of a list.",
    "A text differs: a mode or a setting has changed.",
    "What is recorded of both is equal, and the replay has thrown there: see its error. "
    "Values of tensors, random numbers and settings are not recorded.",
};

void print_side(const char* side, const std::string& words, const std::string& line,
                std::ostream& out) {
  out << "  " << side << printable(words);
  if (!line.empty()) out << "\n           at " << printable(line);
  out << "\n";
}

void print_rest(const RecordingDifference& difference, const char* first, const char* second,
                std::ostream& out) {
  print_side(first, difference.first_words, difference.first_line, out);
  print_side(second, difference.second_words, difference.second_line, out);
  out << "  likely   " << cause_text(difference.cause) << "\n";
  if (!difference.before.empty()) out << "before it, in both:\n";
  size_t number = difference.number - difference.before.size();
  for (const std::string& words : difference.before)
    out << "  op " << number++ << "  " << printable(words) << "\n";
}

}  // namespace

const char* cause_text(DifferenceCause cause) {
  return kCauses.at(static_cast<size_t>(cause));
}

bool print_replay_differences(const Recording& recording, std::ostream& out) {
  const std::vector<RecordingDifference> differences = replay_differences(recording);
  const std::vector<FunctionReplay> replays = function_replays(recording);
  if (differences.empty()) {
    size_t ops = 0;
    for (const FunctionReplay& replay : replays) ops += replay.again.size();
    out << "no difference: " << replays.size() << " replays by functions, " << ops
        << " ops that ran again\n";
    return false;
  }
  const RecordingDifference& first = differences.front();
  const auto number = std::find_if(replays.begin(), replays.end(), [&](const auto& replay) {
    return replay.replay == first.replay;
  });
  out << printable(first.region) << ", replay " << number - replays.begin() << " of "
      << replays.size() << ": op " << first.number << " differs\n";
  print_rest(first, "forward  ", "replay   ", out);
  if (differences.size() > 1) out << differences.size() - 1 << " more replays differ\n";
  return true;
}

bool print_difference(const Recording& a, const Recording& b, std::ostream& out) {
  const std::optional<RecordingDifference> difference = first_difference(a, b);
  if (!difference) {
    const auto ops = std::count_if(a.ops.begin(), a.ops.end(), [](const auto& op) {
      return op.depth == 0 && op.phase != OpPhase::kReplay;
    });
    out << "no difference: " << ops << " ops; values of tensors are not recorded\n";
    return false;
  }
  const bool has_second = difference->second != RecordingDifference::kNone;
  const OpEvent& op = has_second ? b.ops[difference->second] : a.ops[difference->first];
  out << "thread " << difference->thread << ", " << phase_name(op.phase);
  if (!difference->region.empty()) out << ", " << printable(difference->region);
  out << ": op " << difference->number << " differs\n";
  print_rest(*difference, "first    ", "second   ", out);
  return true;
}

}  // namespace remat
