// SPDX-License-Identifier: BSD-3-Clause

// Source places of C++ code, found with LibTorch's unwinder and libbacktrace.
#include <remat/inspect/source_places.h>

#include <c10/util/Type.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#ifdef REMAT_HAS_BACKTRACE
#include <backtrace.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>

namespace remat {
namespace {

std::atomic<SourcePlaces*> python_places{nullptr};

/// Beginnings of the file names of libraries that are not the user's program.
constexpr std::string_view kLibraries[] = {
    "libtorch",  "libc10", "libremat", "libc.",    "libm.",      "libstdc++", "libgomp",
    "libpython", "python", "ld-linux", "libgcc_s", "libpthread", "_C."};

/// Folders of headers; code inlined from them is skipped in search of a line of the program.
constexpr std::string_view kHeaders[] = {"/include/ATen/", "/include/c10/", "/include/torch/",
                                         "/include/remat/", "/include/c++/"};

bool is_library_of_program(const std::string& library) {
  const std::string_view name = std::string_view(library).substr(library.rfind('/') + 1);
  return std::none_of(std::begin(kLibraries), std::end(kLibraries),
                      [&](std::string_view known) { return name.starts_with(known); });
}

bool is_file_of_program(std::string_view file) {
  return std::none_of(std::begin(kHeaders), std::end(kHeaders), [&](std::string_view known) {
    return file.find(known) != std::string_view::npos;
  });
}

/// The source line of an address, such as "model.cpp:12 forward()", from debug information. Empty
/// if all code at the address is from kHeaders; nullopt without debug information.
using CodeLine = std::optional<std::string>;

#ifdef REMAT_HAS_BACKTRACE

int add_frame(void* to, uintptr_t /*address*/, const char* file, int line, const char* function) {
  if (!file) return 0;
  auto& found = *static_cast<CodeLine*>(to);
  if (!found) found.emplace();
  if (!is_file_of_program(file)) return 0;  // go on with the function into which this is inlined
  found = std::string(file) + ":" + std::to_string(line);
  if (function) *found += " " + c10::demangle(function);
  return 1;
}

/// Beginnings of the mangled names of functions from kHeaders. Their names are checked too, because
/// the linker may take such a function from a file without debug information.
constexpr std::string_view kFunctions[] = {"_ZN2at",    "_ZNK2at",    "_ZN3c10", "_ZNK3c10",
                                           "_ZN5torch", "_ZNK5torch", "_ZNSt",   "_ZNKSt"};

void look_at_symbol(void* to, uintptr_t /*address*/, const char* symbol, uintptr_t /*value*/,
                    uintptr_t /*size*/) {
  const std::string_view name = symbol ? symbol : "";
  if (std::any_of(std::begin(kFunctions), std::end(kFunctions),
                  [&](std::string_view known) { return name.starts_with(known); }))
    static_cast<CodeLine*>(to)->emplace();
}

/// Swallows errors, because an address without debug information is simply unknown.
void ignore(void* /*data*/, const char* /*message*/, int /*number*/) {}

CodeLine code_line(uintptr_t address) {
  static backtrace_state* const state =
      backtrace_create_state(nullptr, /*threaded=*/1, &ignore, nullptr);
  CodeLine found;
  backtrace_pcinfo(state, address, &add_frame, &ignore, &found);
  if (!found) backtrace_syminfo(state, address, &look_at_symbol, &ignore, &found);
  return found;
}

#else

CodeLine code_line(uintptr_t /*address*/) {
  return {};
}

#endif

class CppPlaces final : public SourcePlaces {
 public:
  SourcePlace here() override {
    for (void* const address : torch::unwind::unwind()) {
      if (!text_of(address).empty()) return {address, 0};
    }
    return {};
  }

  std::string text(const SourcePlace& place) override {
    return text_of(const_cast<void*>(place.code));
  }

 private:
  /// The cached text of an address; empty if it is not in the program. The reference stays valid.
  const std::string& text_of(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [known, is_new] = known_.try_emplace(address);
    if (is_new) known->second = find_text(address);
    return known->second;
  }

  static std::string find_text(void* address) {
    const auto library = torch::unwind::libraryFor(address);
    if (!library || !is_library_of_program(library->first)) return "";
    // A return address belongs to the instruction after the call.
    const CodeLine line = code_line(reinterpret_cast<uintptr_t>(address) - 1);
    if (line) return *line;
    std::ostringstream text;  // input for addr2line -e
    text << library->first << "+0x" << std::hex << library->second - 1;
    return text.str();
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::string> known_;  // guarded by mutex_; its texts never move
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
