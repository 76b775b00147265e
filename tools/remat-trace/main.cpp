// SPDX-License-Identifier: BSD-3-Clause

// remat-trace: prints recordings and converts them to traces.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/recording/chrome_trace.h>
#include <remat/recording/difference_text.h>
#include <remat/recording/memory_snapshot.h>
#include <remat/recording/printable.h>
#include <remat/recording/recording.h>
#include <remat/recording/recording_summary.h>
#include <remat/recording/replay_links.h>

namespace {

using remat::OpTotals;
using remat::printable;
using remat::Recording;

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3, kDiffers = 4 };

struct Arguments {
  std::string path;
  bool lists_ops = false;
  std::string op;      ///< Part of the names of listed ops; empty: any.
  std::string region;  ///< Part of the labels of the ops' regions; empty: any.
  std::string phase;   ///< outside, forward, replay or backward; empty: any.
  int64_t slot = -1;   ///< Slot saved while the op ran; -1: no condition.
  std::string chrome_path;
  std::string snapshot_path;
  /// Set for `diff` only: the recording with which `path` is compared; if empty, the replays in
  /// `path` are compared with their forwards.
  std::optional<std::string> other_path;
};

const char* const kFooter = R"(Examples:
  remat-trace step.rec                          what ran in each phase and region, and the peak of memory
  remat-trace step.rec --ops --phase replay     every op that ran again
  remat-trace step.rec --ops --op mm            the ops with mm in their names
  remat-trace step.rec --ops --region block.0 --slot 3        what made and what remade a saved tensor
  remat-trace step.rec --chrome step.json       for chrome://tracing and ui.perfetto.dev
  remat-trace step.rec --snapshot step.pickle   for pytorch.org/memory_viz
  remat-trace diff step.rec                     the first op of a replay that differs from its forward, and why
  remat-trace diff plain.rec step.rec           the first op in which two runs of a program differ, and why

Recordings are written by remat.record("step.rec") in Python, remat::Recorder in C++, or REMAT_RECORD=FOLDER.

Exit codes: 0 done; 1 a fault in remat-trace itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood; 4 diff has found a difference. A recording that is cut off is read up to there, with a warning.)";

const char* const kDiffFooter =
    R"(Two recordings are compared by what the program does: ops outside of regions and in their forwards, then those of
backward, in order, whatever their times and addresses. So a run with regions has no difference to one without.

Exit codes: 0 no difference; 4 a difference; others as of remat-trace.)";

void add_diff(CLI::App& app, Arguments& arguments) {
  CLI::App* const diff = app.add_subcommand(
      "diff", "Finds the first op in which two runs differ, or a replay from its forward");
  diff->footer(kDiffFooter);
  diff->add_option("recording", arguments.path, "Whose replays are compared with their forwards")
      ->required();
  diff->add_option("other", arguments.other_path, "If given, the recording of another run");
  diff->preparse_callback([&](size_t) { arguments.other_path.emplace(); });
}

/// Returns false if the program should end with exit_code; messages have been printed.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app("Shows what a recording says: ops, regions, memory.", "remat-trace");
  app.footer(kFooter);
  app.add_option("recording", arguments.path, "What a recorder has written");
  app.add_flag("--ops", arguments.lists_ops, "List ops, in the order in which they began");
  app.add_option("--op", arguments.op, "Only ops with this in their names");
  app.add_option("--region", arguments.region, "Only ops in regions with this in their labels");
  app.add_option("--phase", arguments.phase, "Only ops of this phase")
      ->check(CLI::IsMember({"outside", "forward", "replay", "backward"}));
  app.add_option("--slot", arguments.slot, "Only ops in which autograd saved that slot of a region")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--chrome", arguments.chrome_path, "Write a trace for viewers as JSON");
  app.add_option("--snapshot", arguments.snapshot_path,
                 "Write memory for PyTorch's memory viewer as a pickle");
  add_diff(app, arguments);
  try {
    app.parse(argc, argv);
    if (arguments.path.empty()) throw CLI::RequiredError("recording");
    const bool filters =
        app.count("--op") + app.count("--region") + app.count("--phase") + app.count("--slot") > 0;
    if (filters && !arguments.lists_ops)
      throw CLI::ValidationError("--ops", "expected with --op, --region, --phase and --slot");
    const bool writes = !arguments.chrome_path.empty() || !arguments.snapshot_path.empty();
    if (arguments.other_path && (arguments.lists_ops || writes))
      throw CLI::ValidationError("diff", "expected no options of what shows or writes a recording");
    return true;
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-trace] " << error.what() << ". See remat-trace --help.\n";
    exit_code = kUsage;
  }
  return false;
}

double ms(int64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

double mb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e6;
}

void print_totals(const OpTotals& totals, std::ostream& out) {
  out << std::setw(9) << totals.ops << std::setw(12) << std::fixed << std::setprecision(3)
      << ms(totals.ns);
}

std::string words_of(const Recording& recording,
                     const std::vector<remat::RecordedTensor>& tensors) {
  std::string words;
  for (const remat::RecordedTensor& tensor : tensors) {
    words += (words.empty() ? "" : ", ") + recording.words_of(tensor);
  }
  return words;
}

double percent(int64_t part, int64_t whole) {
  return 100 * static_cast<double>(part) / static_cast<double>(whole);
}

void print_peak(const remat::RecordingSummary& summary, std::ostream& out) {
  out << "at the peak, MB:";
  for (size_t kind = 0; kind < remat::kBlockKinds; ++kind) {
    if (summary.peak.bytes[kind] == 0) continue;
    out << " " << remat::kind_name(static_cast<remat::BlockKind>(kind)) << " "
        << mb(summary.peak.bytes[kind]) << ",";
  }
  out << " of which " << std::setprecision(2)
      << percent(summary.peak_bytes_of_ops, summary.peak_bytes) << " % have their op and "
      << percent(summary.peak_bytes_of_lines, summary.peak_bytes) << " % their line\n"
      << std::setprecision(3);
}

void print_peak_rows(const std::vector<remat::PeakRow>& rows, std::ostream& out) {
  constexpr size_t kMost = 10;
  out << "       MB   blocks  kind                made by\n";
  for (size_t i = 0; i < std::min(rows.size(), kMost); ++i) {
    const remat::PeakRow& row = rows[i];
    out << std::setw(9) << mb(row.bytes) << std::setw(9) << row.blocks << "  " << std::left
        << std::setw(18) << remat::kind_name(row.kind) << std::right << "  "
        << (row.op.empty() ? "no recorded op" : printable(row.op));
    if (!row.region.empty()) out << "; " << printable(row.region);
    if (!row.line.empty()) out << "; " << printable(row.line);
    out << "\n";
  }
  if (rows.size() <= kMost) return;
  int64_t bytes = 0;
  int64_t blocks = 0;
  for (size_t i = kMost; i < rows.size(); ++i) {
    bytes += rows[i].bytes;
    blocks += rows[i].blocks;
  }
  out << std::setw(9) << mb(bytes) << std::setw(9) << blocks << "  in " << rows.size() - kMost
      << " more rows: remat-report shows all\n";
}

/// True if autograd saved slot `slot` while the op ran. A negative `slot` matches every op.
bool has_slot(const remat::OpEvent& op, int64_t slot) {
  if (slot < 0) return true;
  return op.first_slot <= slot && slot < op.end_slot;
}

void print_marks(const Recording& recording, std::ostream& out) {
  constexpr size_t kMost = 20;
  for (size_t i = 0; i < std::min(recording.marks.size(), kMost); ++i) {
    const auto& mark = recording.marks[i];
    out << "mark '" << printable(recording.text(mark.name)) << "' after " << ms(mark.time_ns)
        << " ms\n";
  }
  if (recording.marks.size() > kMost)
    out << "and " << recording.marks.size() - kMost << " marks more\n";
}

void print_summary(const Recording& recording, std::ostream& out) {
  const remat::RecordingSummary summary = remat::summary_of(recording);
  out << printable(recording.text(recording.process.program)) << "\npid " << recording.process.pid
      << ", torch " << printable(recording.text(recording.process.torch_version)) << ", "
      << std::fixed << std::setprecision(3) << ms(summary.end_ns) << " ms recorded\n\n"
      << "phase          ops          ms\n";
  for (size_t phase = 0; phase < summary.by_phase.size(); ++phase) {
    out << std::left << std::setw(9) << remat::phase_name(static_cast<remat::OpPhase>(phase))
        << std::right;
    print_totals(summary.by_phase[phase], out);
    const bool is_replay = static_cast<remat::OpPhase>(phase) == remat::OpPhase::kReplay;
    if (is_replay && summary.left_out > 0)
      out << "  and " << summary.left_out << " left out, which rules SAVE";
    out << "\n";
  }
  out << "\nmemory: peak " << mb(summary.peak_bytes)
      << " MB of what was made while recording, after " << ms(summary.peak_ns) << " ms; "
      << mb(summary.end_bytes) << " MB alive in the end\n";
  if (summary.peak_bytes > 0) {
    print_peak(summary, out);
    print_peak_rows(summary.peak_rows, out);
  }
  print_marks(recording, out);
  if (summary.regions.empty()) return;
  out << "\nregions  forward ops     ms       replayed          ms    saved     kept  label\n";
  for (const remat::RegionTotals& region : summary.regions) {
    out << std::setw(7) << region.regions;
    print_totals(region.forward, out);
    print_totals(region.replay, out);
    out << std::setw(9) << region.slots << std::setw(9) << region.kept_slots << "  "
        << printable(region.label) << "\n";
    for (const remat::KeptTotals& kept : region.kept) {
      out << "         kept" << std::setw(9) << mb(kept.bytes) << " MB in " << kept.blocks
          << (kept.blocks == 1 ? " block by " : " blocks by ")
          << (kept.call.empty() ? "calls that saved it" : printable(kept.call)) << "\n";
    }
  }
}

void print_ops(const Recording& recording, const Arguments& arguments, std::ostream& out) {
  std::unordered_map<uint64_t, std::string> labels;
  for (const auto& region : recording.regions) labels[region.region] = recording.text(region.label);
  out << "          ms        took  thread phase     op\n";
  const std::vector<bool> left_out = remat::left_out_ops(recording);
  bool is_any = false;
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    const auto& op = recording.ops[i];
    const char* const phase = remat::phase_name(op.phase);
    const std::string& name = recording.text(op.name);
    const std::string label = op.region == 0 ? "" : labels[op.region];
    if (!arguments.phase.empty() && arguments.phase != phase) continue;
    if (name.find(arguments.op) == std::string::npos) continue;
    if (label.find(arguments.region) == std::string::npos) continue;
    if (!has_slot(op, arguments.slot)) continue;
    is_any = true;
    out << std::fixed << std::setprecision(4) << std::setw(12) << ms(op.begin_ns) << std::setw(12)
        << ms(op.end_ns - op.begin_ns) << std::setw(8) << op.thread << " " << std::left
        << std::setw(9) << phase << std::right << " "
        << std::string(2 * std::min<size_t>(op.depth, 20), ' ') << printable(name) << "("
        << words_of(recording, op.arguments) << ")";
    if (op.keys != 0) out << " [" << printable(recording.text(op.keys)) << "]";
    out << " -> " << words_of(recording, op.results);
    if (op.end_slot > op.first_slot + 1) {
      out << "; slots " << op.first_slot << " to " << op.end_slot - 1;
    } else if (op.end_slot > op.first_slot) {
      out << "; slot " << op.first_slot;
    }
    if (op.call != 0) out << "; in call '" << printable(recording.text(op.call)) << "'";
    if (left_out[i]) out << "; left out: a rule SAVEs it";
    if (op.threw) out << "; threw";
    if (!label.empty()) out << "; " << printable(label);
    if (op.line != 0) out << "; " << printable(recording.text(op.line));
    out << "\n";
  }
  if (!is_any) out << "no op is like that\n";
}

template <class Write>
void write_file(const std::string& path, Write&& write) {
  std::ofstream file(path, std::ios::binary);
  write(file);
  file.close();
  if (!file) {
    throw std::invalid_argument("[remat-trace] " + path +
                                ": expected a path that can be written. Correct it.");
  }
}

/// Writes the requested files. Returns true if any was requested.
bool write_files(const Recording& recording, const Arguments& arguments) {
  const std::string& chrome = arguments.chrome_path;
  const std::string& snapshot = arguments.snapshot_path;
  if (!chrome.empty())
    write_file(chrome, [&](std::ostream& out) { write_chrome_trace(recording, out); });
  if (!snapshot.empty())
    write_file(snapshot, [&](std::ostream& out) { write_memory_snapshot(recording, out); });
  return !chrome.empty() || !snapshot.empty();
}

Recording load(const std::string& path) {
  Recording recording = Recording::load(path);
  if (!recording.damage.empty()) {
    std::cerr << "[remat-trace] " << path << ": " << recording.damage
              << ": what follows is left out\n";
  }
  return recording;
}

int compare(const Arguments& arguments) {
  const Recording recording = load(arguments.path);
  const bool differs = arguments.other_path->empty()
                           ? print_replay_differences(recording, std::cout)
                           : print_difference(recording, load(*arguments.other_path), std::cout);
  if (!std::cout.flush()) return kFile;
  return differs ? kDiffers : kDone;
}

int run(const Arguments& arguments) {
  if (arguments.other_path) return compare(arguments);
  const Recording recording = load(arguments.path);
  const bool writes = write_files(recording, arguments);
  if (arguments.lists_ops) {
    print_ops(recording, arguments, std::cout);
  } else if (!writes) {
    print_summary(recording, std::cout);
  }
  return std::cout.flush() ? kDone : kFile;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  int exit_code = 0;
  try {
    if (!parse(argc, argv, arguments, exit_code)) return exit_code;
    return run(arguments);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kFile;
  } catch (const std::exception& error) {
    std::cerr << "[remat-trace] a fault of remat-trace: " << error.what() << "\n";
    return kFault;
  }
}
