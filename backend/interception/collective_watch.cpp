// SPDX-License-Identifier: BSD-3-Clause

// Calling the watch before a collective.
#include <remat/backend/collective_watch.h>

#include <atomic>

#include <remat/tape/hidden_scopes.h>

namespace remat {
namespace {

std::atomic<CollectiveWatch> current_watch{nullptr};

}  // namespace

void set_collective_watch(CollectiveWatch watch) {
  current_watch.store(watch, std::memory_order_relaxed);
}

void tell_collective_watch(const OpCall& call) {
  const CollectiveWatch watch = current_watch.load(std::memory_order_relaxed);
  if (!watch) return;
  const SuspendScopes suspend;
  watch(call);
}

}  // namespace remat
