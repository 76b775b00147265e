// SPDX-License-Identifier: BSD-3-Clause

// The kinds of steps of one function, and the prediction of the kind that comes next.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <remat/budget/auto_checkpoint.h>
#include <remat/engine/expected_tape.h>

#include "step_variant.h"

namespace remat {

/// Guarded by the mutex of AutoCheckpoint::State.
///
/// Note [Which kind comes next]: a step's arguments do not determine its ops, which may depend on a
/// flag, on data, or on the number of the step. So the sequence of kinds is remembered, as rows of
/// consecutive steps of one kind. If another kind once came after a row like the present one
/// (preferably with an equal row before it, too), that kind is predicted; else the last step's
/// kind. This predicts periodic sequences, such as two alternating kinds, or another kind at every
/// fifth step. All unmeasured kinds count as one kind; a step that is predicted to be of that kind
/// is measured. A wrong prediction affects only memory, not results, because such a step leaves its
/// plan.
class StepVariants {
 public:
  /// The variant as which a step with this signature is expected to run; null: measure the step.
  std::shared_ptr<StepVariant> expected(const StepSignature& signature) const;

  /// A variant as which a step with this signature may run if it cannot be measured; null: none.
  std::shared_ptr<StepVariant> any(const StepSignature& signature) const;

  /// True if another variant than `variant` wants measuring, with fewer than `steps` measured
  /// steps.
  bool measures_another(const StepVariant& variant, int steps) const;

  /// True if a step of an unknown kind may still be measured. kMostMeasurements limits the number
  /// of measurements, whether they find a new kind or a known one.
  bool may_measure() const;

  /// Adds a measured variant. Returns the known variant that equals it, or else `variant`.
  std::shared_ptr<StepVariant> add(std::shared_ptr<StepVariant> variant);

  /// Counts a measurement of a step that cannot be planned.
  void add_unplanned() { ++measurements_; }

  /// Records that a step begins to run as this variant.
  void use(StepVariant& variant) { variant.last_used = ++steps_; }

  /// Number of steps that have begun to run as a known kind.
  uint64_t steps() const { return steps_; }

  /// The largest budget of a plan, in bytes.
  int64_t largest_budget() const;

  /// Records that a step with this signature was of the kind `variant`; null: an unknown kind.
  void came(const StepSignature& signature, const std::shared_ptr<StepVariant>& variant);

  /// The kind of a step that ran as variant `ran` and differed from it; null if unknown.
  std::shared_ptr<StepVariant> find(const StepVariant& ran, const TapeDifference& difference) const;

 private:
  /// A number of consecutive steps of one kind.
  struct Row {
    const StepVariant* kind = nullptr;
    int64_t steps = 0;
    auto operator<=>(const Row&) const = default;
  };
  /// The row before the last one, empty if it is ignored; and the last row.
  using Context = std::pair<Row, Row>;

  /// The sequence of kinds for one signature.
  struct Sequence {
    std::weak_ptr<StepVariant> last{};  // null: an unknown kind
    Row now{};
    Row before{};
    std::map<Context, std::weak_ptr<StepVariant>> changes{};

    std::shared_ptr<StepVariant> next() const;
    void add(const std::shared_ptr<StepVariant>& variant);
  };

  const StepSignature* known_signature(const StepSignature& signature) const;
  void forget_least_used();

  std::vector<std::shared_ptr<StepVariant>> variants_;
  std::map<StepSignature, Sequence> sequences_;  // by signature of variants
  uint64_t steps_ = 0;
  int measurements_ = 0;
  int in_vain_ = 0;  // measurements of a kind that was already known
};

}  // namespace remat
