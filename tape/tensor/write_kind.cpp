// SPDX-License-Identifier: BSD-3-Clause

// Looking up the ops of LibTorch that overwrite an argument without reading it.
#include "write_kind.h"

namespace remat {

WriteKind write_kind(const OpCall& call, size_t i) {
  if (i != 0) return WriteKind::kReads;
  const OpFacts facts = call.info().facts();
  if (facts.has(OpFact::kOverwrites)) return WriteKind::kWhole;
  if (facts.has(OpFact::kOverwritesPart)) return WriteKind::kPart;
  constexpr size_t kAccumulate = 3;
  const bool writes_part = facts.has(OpFact::kAccumulates) && call.argument(kAccumulate).isBool() &&
                           !call.argument(kAccumulate).toBool();
  return writes_part ? WriteKind::kPart : WriteKind::kReads;
}

}  // namespace remat
