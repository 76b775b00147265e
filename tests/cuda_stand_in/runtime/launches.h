// SPDX-License-Identifier: BSD-3-Clause

// Counts launches of kernels, and those that nobody computes on the host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>

namespace cuda_stand_in {

class Launches {
 public:
  // `name` must outlive this object; it is the string in the program's image.
  void name_kernel(const void* kernel, const char* name) { names_.emplace(kernel, name); }
  const char* name_of(const void* kernel) const;

  // Counts a launch by the calling thread.
  void count(const char* name);

  uint64_t launches() const { return launches_; }
  uint64_t garbage() const;
  void print_garbage() const;
  void reset_garbage() { garbage_.clear(); }

 private:
  std::unordered_map<const void*, const char*> names_;
  uint64_t launches_ = 0;
  std::map<std::string, uint64_t> garbage_;
};

}  // namespace cuda_stand_in
