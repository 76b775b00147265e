// SPDX-License-Identifier: BSD-3-Clause

// Which bits switch interception on.
#include <remat/tape/interception_bits.h>

#include <atomic>

namespace remat {
namespace {

std::atomic<uint64_t> bits{0};

}  // namespace

void set_interception_bits(uint64_t value) {
  bits.store(value, std::memory_order_release);
}

uint64_t interception_bits() {
  return bits.load(std::memory_order_relaxed);
}

}  // namespace remat
