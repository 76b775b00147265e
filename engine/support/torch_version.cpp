// SPDX-License-Identifier: BSD-3-Clause

// Ends the process at load when LibTorch's minor version is not the one remat was compiled for.
#include "torch_version.h"

#include <caffe2/core/common.h>
#include <torch/headeronly/version.h>

#include <stdexcept>

// Keeps this file in programs that link remat statically; see the link options in CMakeLists.txt.
extern "C" REMAT_API const int remat_torch_version_checked;

namespace remat::detail {
namespace {

// Returns the part before the second dot: "2.11" for "2.11.0+cu130".
std::string_view minor_version(std::string_view version) {
  const auto first = version.find('.');
  if (first == std::string_view::npos) return version;
  return version.substr(0, version.find_first_not_of("0123456789", first + 1));
}

// noexcept: an exception ends the process with its text, because it must not unwind through the
// loader.
int check_at_load() noexcept {
  check_torch_version(compiled_torch_version(), loaded_torch_version());
  return 1;
}

}  // namespace

std::string_view compiled_torch_version() {
  return TORCH_VERSION;
}

std::string loaded_torch_version() {
  const auto& options = caffe2::GetBuildOptions();
  const auto found = options.find("TORCH_VERSION");
  return found == options.end() ? std::string() : found->second;
}

void check_torch_version(std::string_view compiled, std::string_view loaded) {
  const auto expected = minor_version(compiled);
  if (!loaded.empty() && minor_version(loaded) == expected) return;
  throw std::runtime_error("[remat] LibTorch: expected version " + std::string(expected) +
                           " (remat was compiled for " + std::string(compiled) + "), got " +
                           (loaded.empty() ? "one that names no version" : std::string(loaded)) +
                           ". Load LibTorch " + std::string(expected) +
                           " (check LD_LIBRARY_PATH), or compile remat for the one you have.");
}

}  // namespace remat::detail

const int remat_torch_version_checked = remat::detail::check_at_load();
