// SPDX-License-Identifier: BSD-3-Clause

// What autograd is to save for SAVE calls that have ended.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/hidden_scopes.h>
#include <remat/tape/named_call.h>

#include "saved_call.h"

namespace remat {

/// Custom functions' calls: autograd saves for the function when that has returned.
class ExpectedSaves {
 public:
  /// For the call that runs: see NamedCalls::expect_saved().
  void expect(const std::vector<std::string>& names, c10::ArrayRef<at::Tensor> tensors,
              const SavingState& saving);
  /// That throws.
  void abandon_call() noexcept { drop_unseen(std::exchange(of_running_, {})); }
  /// That ends. Moves from `running` if anything is expected for it.
  void end_call(SavedCall& running);

  bool empty() const { return calls_.empty(); }
  /// What was expected will not be saved, but for what is saved later: by_op, what may be.
  void end(bool by_op = false) noexcept;

  /// The call for which autograd saves `tensor`; null if it does so for others, or for a region,
  /// which may have the same tensor as an argument.
  SavedCall* call_that_saves(const at::Tensor& tensor);

  /// True if `call` is one of these. Then, of the tensor that autograd saves for it:
  bool has(const SavedCall& call) { return find(call) != nullptr; }
  const std::string& next_name(const SavedCall& call);
  /// Code after the call has written it: an argument then is another than in the call.
  bool is_written(const SavedCall& call);

  /// Code of the user may run in the pack hook of that tensor, of any call. What autograd fails to
  /// save ends what it was to save. `call`: its index.
  void begin_pack(const SavedCall& call);
  void end_pack(size_t call, bool has_failed) noexcept;

 private:
  /// In order. Some may be undefined.
  struct Expected {
    SavedCall call{};
    SavingState saving{};
    uint64_t next_node = 0;  // when the call ended
    std::vector<at::Tensor> tensors{};
    std::vector<std::string> names{};
    std::vector<uint32_t> versions{};  // when the call ended
    size_t position = 0;               // of what autograd saves
    bool is_packing = false;           // that

    bool takes(const at::Tensor& tensor);
    bool is_at_position(const at::Tensor& tensor) const;
  };

  Expected* find(const SavedCall& call);
  void end_at(size_t i) noexcept;

  std::optional<Expected> of_running_;  // whose call has not ended yet
  std::vector<Expected> calls_;
};

}  // namespace remat
