// SPDX-License-Identifier: BSD-3-Clause

// Host memory that is page-locked as far as the program can tell: asynchronous copies read and
// write it later.
#pragma once

#include <cstddef>
#include <map>

namespace cuda_stand_in {

class PinnedMemory {
 public:
  // Returns null if the system has no memory.
  void* allocate(size_t bytes);

  // Returns false if allocate() did not return `p`.
  bool release(void* p);

  // Returns false if `p` is pinned already.
  bool pin(void* p, size_t bytes);

  // Returns false if pin() was not called for `p`.
  bool unpin(void* p);

  bool contains(const void* p) const;

 private:
  struct Block {
    size_t bytes;
    bool is_allocation;  // else the program's own memory
  };
  bool erase(void* p, bool is_allocation);

  std::map<const char*, Block> blocks_;
};

}  // namespace cuda_stand_in
