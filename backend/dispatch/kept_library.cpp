// SPDX-License-Identifier: BSD-3-Clause

// The process-wide list of libraries.
#include "kept_library.h"

#include <memory>
#include <mutex>
#include <vector>

namespace remat {

torch::Library& keep_library(const char* name, c10::DispatchKey key, const char* file,
                             uint32_t line) {
  static std::mutex mutex;
  // Leaked: LibTorch may be unloaded when statics are destroyed.
  static auto* const kept = new std::vector<std::unique_ptr<torch::Library>>();
  const std::lock_guard<std::mutex> lock(mutex);
  kept->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name, key, file, line));
  return *kept->back();
}

}  // namespace remat
