// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/difference_text.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <remat/recording/printable.h>
#include <remat/recording/recording_diff.h>
#include <remat/recording/replay_links.h>

namespace remat {
namespace {

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
  out << "thread " << difference->thread << ", " << phase_name(difference->phase);
  if (!difference->region.empty()) out << ", " << printable(difference->region);
  out << ": op " << difference->number << " differs\n";
  print_rest(*difference, "first    ", "second   ", out);
  return true;
}

}  // namespace remat
