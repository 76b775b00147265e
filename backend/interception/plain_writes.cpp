// SPDX-License-Identifier: BSD-3-Clause

// Showing writes of plain code to the regions that have read what is written.
#include "plain_writes.h"

#include <remat/tape/data_hooks.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>
#include <remat/tape/unversioned_writes.h>

namespace remat {

void PlainWrites::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack) const {
  const c10::DispatchKeySet below = keys & c10::after_ADInplaceOrView_keyset;
  const bool has_been_seen = Scope::current() != nullptr;
  const bool has_readers = youngest_region() != 0;  // the process has had a region
  if (has_been_seen || !has_readers) return op.redispatchBoxed(below, stack);
  const OpCall call(info_, *stack);
  hand_to_readers(call);
  const UnversionedWrites writes(call);
  op.redispatchBoxed(below, stack);
  writes.finish();
}

}  // namespace remat
