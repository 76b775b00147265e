// SPDX-License-Identifier: BSD-3-Clause

// Names and counts of launches.
#include "launches.h"

#include <cinttypes>
#include <cstdio>

#include "thread_state.h"

namespace cuda_stand_in {

const char* Launches::name_of(const void* kernel) const {
  const auto it = names_.find(kernel);
  return it == names_.end() ? "a kernel without a name" : it->second;
}

void Launches::count(const char* name) {
  ++launches_;
  if (this_thread().covered == 0) ++garbage_[name];
}

uint64_t Launches::garbage() const {
  uint64_t sum = 0;
  for (const auto& [name, count] : garbage_) sum += count;
  return sum;
}

void Launches::print_garbage() const {
  for (const auto& [name, count] : garbage_)
    std::fprintf(stderr, "[cuda stand-in] nobody computed %" PRIu64 " x %s\n", count, name.c_str());
}

}  // namespace cuda_stand_in
