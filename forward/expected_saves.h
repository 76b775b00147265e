// SPDX-License-Identifier: BSD-3-Clause

// Tensors that autograd is going to save for SAVE calls that have ended.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/named_call.h>

#include "saved_call.h"

namespace remat {

/// Tensors of custom functions, which autograd saves only after the function's call has returned.
class REMAT_API ExpectedSaves {
 public:
  /// Call it in the running call: see NamedCalls::expect_saved().
  void expect(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
              const SavingState& saving);
  /// Call it when the running call throws.
  void abandon_call() noexcept { drop_unseen(std::exchange(of_running_, {})); }
  /// Call it when the running call ends. Moves from `running` if saves are expected for the call.
  void end_call(SavedCall& running);

  bool empty() const { return calls_.empty(); }
  /// Gives up expected saves, except for those not yet due (kNotYet) and, with `by_op`, those that
  /// may or may not come (kMaybe).
  void end(bool by_op = false) noexcept;

  /// Returns the call for which autograd saves `tensor`. Null if autograd saves for other code, or
  /// for a region that has the same tensor as an argument.
  SavedCall* call_that_saves(const at::Tensor& tensor);

  /// True if `call` has expected saves. If so, next_name() names the tensor that is saved next.
  bool has(const SavedCall& call) { return find(call) != nullptr; }
  const std::string& next_name(const SavedCall& call);
  /// True if the tensor that is being saved for `call` was written after the call ended.
  bool is_written(const SavedCall& call);

  /// Call them around the pack hook of the tensor being saved, because the hook is user code, which
  /// may make calls. If the hook fails, the call's other expected saves are given up. `call` of
  /// end_pack() is the call's index.
  void begin_pack(const SavedCall& call);
  void end_pack(size_t call, bool has_failed) noexcept;

 private:
  /// The tensors expected for one call, in the order of saving; some may be undefined.
  struct Expected {
    SavedCall call{};
    SavingState saving{};
    uint64_t next_node = 0;  // Next sequence number at the call's end.
    std::vector<at::Tensor> tensors{};
    std::vector<std::string> names{};
    std::vector<uint32_t> versions{};  // At the call's end.
    size_t position = 0;               // Position of the tensor being saved.
    bool is_packing = false;           // The tensor at `position` is being packed.

    bool takes(const at::Tensor& tensor);
    bool is_at_position(const at::Tensor& tensor) const;
  };

  Expected* find(const SavedCall& call);
  void end_at(size_t i) noexcept;

  std::optional<Expected> of_running_;  // For the running call.
  std::vector<Expected> calls_;
};

}  // namespace remat
