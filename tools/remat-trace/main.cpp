// SPDX-License-Identifier: BSD-3-Clause

// remat-trace: prints recordings and converts them to traces.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include <remat/recording/chrome_trace.h>
#include <remat/recording/difference_text.h>
#include <remat/recording/memory_snapshot.h>
#include <remat/recording/recording.h>

#include "arguments.h"
#include "output.h"

namespace remat_trace {
namespace {

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

/// Writes the requested files; true if there are any.
bool write_files(const remat::Recording& recording, const Arguments& arguments) {
  const std::string& chrome = arguments.chrome_path;
  const std::string& snapshot = arguments.snapshot_path;
  if (!chrome.empty())
    write_file(chrome, [&](std::ostream& out) { write_chrome_trace(recording, out); });
  if (!snapshot.empty())
    write_file(snapshot, [&](std::ostream& out) { write_memory_snapshot(recording, out); });
  return !chrome.empty() || !snapshot.empty();
}

remat::Recording load(const std::string& path) {
  remat::Recording recording = remat::Recording::load(path);
  if (!recording.damage.empty()) {
    std::cerr << "[remat-trace] " << path << ": " << recording.damage
              << ": what follows is left out\n";
  }
  return recording;
}

int compare(const Arguments& arguments) {
  const remat::Recording recording = load(arguments.path);
  const bool differs = arguments.other_path->empty()
                           ? print_replay_differences(recording, std::cout)
                           : print_difference(recording, load(*arguments.other_path), std::cout);
  if (!std::cout.flush()) return kFile;
  return differs ? kDiffers : kDone;
}

int run(const Arguments& arguments) {
  if (arguments.other_path) return compare(arguments);
  const remat::Recording recording = load(arguments.path);
  const bool writes = write_files(recording, arguments);
  if (arguments.lists_ops) {
    print_ops(recording, arguments, std::cout);
  } else if (!writes) {
    print_summary(recording, std::cout);
  }
  return std::cout.flush() ? kDone : kFile;
}

}  // namespace
}  // namespace remat_trace

int main(int argc, char** argv) {
  remat_trace::Arguments arguments;
  int exit_code = 0;
  try {
    if (!remat_trace::parse(argc, argv, arguments, exit_code)) return exit_code;
    return remat_trace::run(arguments);
  } catch (const remat_trace::WrongArgument& error) {
    std::cerr << error.what() << "\n";
    return remat_trace::kUsage;
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return remat_trace::kFile;
  } catch (const std::exception& error) {
    std::cerr << "[remat-trace] a fault of remat-trace: " << error.what() << "\n";
    return remat_trace::kFault;
  }
}
