// SPDX-License-Identifier: BSD-3-Clause

// Places of C++, by LibTorch's unwinder.
#include <remat/inspect/source_places.h>

#include <torch/csrc/profiler/unwind/unwind.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace remat {
namespace {

std::atomic<SourcePlaces*> python_places{nullptr};

/// Of what no user means by "my program".
constexpr std::string_view kLibraries[] = {
    "libtorch",  "libc10", "libremat", "libc.",    "libm.",      "libstdc++", "libgomp",
    "libpython", "python", "ld-linux", "libgcc_s", "libpthread", "_C."};

bool is_of_program(const std::string& library) {
  const std::string_view name = std::string_view(library).substr(library.rfind('/') + 1);
  for (const std::string_view known : kLibraries) {
    if (name.substr(0, known.size()) == known) return false;
  }
  return true;
}

class CppPlaces final : public SourcePlaces {
 public:
  SourcePlace here() override {
    for (void* const address : torch::unwind::unwind()) {
      if (knows_as_program(address)) return {address, 0};
    }
    return {};
  }

  std::string text(const SourcePlace& place) override {
    // An address to return to is of the instruction after the call.
    void* const address = static_cast<char*>(const_cast<void*>(place.code)) - 1;
    try {
      const auto frames = torch::unwind::symbolize({address}, torch::unwind::Mode::addr2line);
      if (!frames.empty() && frames[0].lineno > 0) {
        return frames[0].filename + ":" + std::to_string(frames[0].lineno) + " " +
               frames[0].funcname;
      }
    } catch (const std::exception&) {
      // There is no addr2line.
    }
    return without_debug_information(address);
  }

 private:
  bool knows_as_program(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [known, is_new] = known_.emplace(address, false);
    if (is_new) {
      const auto library = torch::unwind::libraryFor(address);
      known->second = library && is_of_program(library->first);
    }
    return known->second;
  }

  /// "train+0x1234", for addr2line -e
  static std::string without_debug_information(void* address) {
    const auto library = torch::unwind::libraryFor(address);
    if (!library) return "";
    std::ostringstream text;
    text << library->first << "+0x" << std::hex << library->second;
    return text.str();
  }

  std::mutex mutex_;
  std::unordered_map<void*, bool> known_;  // guarded by mutex_
};

}  // namespace

SourcePlaces& SourcePlaces::of_cpp() {
  static auto& places = *new CppPlaces;
  return places;
}

SourcePlaces* SourcePlaces::of_python() {
  return python_places.load(std::memory_order_acquire);
}

void SourcePlaces::set_python(SourcePlaces* places) {
  python_places.store(places, std::memory_order_release);
}

}  // namespace remat
