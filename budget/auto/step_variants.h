// SPDX-License-Identifier: BSD-3-Clause

// The kinds of steps of one function, and which of them comes next.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/tape/expected_tape.h>

#include "step_variant.h"

namespace remat {

/// Guarded by the state that has it.
///
/// Note [Which kind comes next]: a step's arguments do not tell its ops: they may depend on a flag,
/// on data, on the number of the step. So the kinds that came are remembered. The next one is that
/// of the last step, unless after as many steps of it in a row another one came before; what came
/// before that row counts, too, if it is known. That foretells what repeats in turn, two kinds that
/// alternate as well as every fifth step of another kind. A kind that nobody has measured counts as
/// one: it is foretold, too, and measured then. Where that fails no number is wrong, but memory:
/// such a step leaves its plan.
class StepVariants {
 public:
  /// As what such a step is expected to run; null: it is to be measured.
  std::shared_ptr<StepVariant> expected(const StepSignature& signature) const;

  /// What such a step may run as, if it cannot be measured; null: nothing.
  std::shared_ptr<StepVariant> any(const StepSignature& signature) const;

  /// True if fewer than `steps` steps have been measured of a kind, besides that one, of which more
  /// are to be.
  bool measures_another(const StepVariant& variant, int steps) const;

  /// A step was measured: the variant that is known already, else this one.
  std::shared_ptr<StepVariant> add(std::shared_ptr<StepVariant> variant);

  /// A step with that signature has run, and was of this kind; null: of none that is known.
  void came(const StepSignature& signature, const std::shared_ptr<StepVariant>& variant);

  /// The kind of a step that was run as another one and differed from that; null: none is known.
  std::shared_ptr<StepVariant> find(const StepVariant& ran, const TapeDifference& difference) const;

 private:
  /// So many steps of a kind, one after the other.
  struct Row {
    const StepVariant* kind = nullptr;
    int64_t steps = 0;
    auto operator<=>(const Row&) const = default;
  };
  /// The row before the last one, empty if it does not matter; and the last one.
  using Context = std::pair<Row, Row>;

  /// The kinds that came for one signature.
  struct Sequence {
    StepSignature signature;
    std::weak_ptr<StepVariant> last{};  // null: of no kind that is known
    Row now{};
    Row before{};
    std::map<Context, std::weak_ptr<StepVariant>> changes{};

    std::shared_ptr<StepVariant> next() const;
    void add(const std::shared_ptr<StepVariant>& variant);
  };

  const StepSignature* known_signature(const StepSignature& signature) const;
  size_t sequence_of(const StepSignature& signature) const;
  void forget_least_used();

  std::vector<std::shared_ptr<StepVariant>> variants_;
  std::vector<Sequence> sequences_;  // by signatures of variants
};

}  // namespace remat
