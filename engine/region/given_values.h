// SPDX-License-Identifier: BSD-3-Clause

// The saved tensors that one backward pass has got from a region and may not write.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <remat/engine/backward_passes.h>
#include <remat/engine/call_log.h>

namespace remat {

class Region;

/// Note [Writes in a backward]: the backward of a custom function may write in place what it has
/// saved. In plain code everybody who has that memory sees the write: an attribute of the context,
/// another saved tensor, the next backward of a retained graph. With saved-tensor hooks, the hooks
/// decide whether a saved tensor is that memory or a copy. A region hands backward a tensor that it
/// has made again, or that a store has brought back, and cannot know what hooks would have done. So
/// versions are compared at the end of the pass, and a write that somebody may see raises.
class GivenValues {
 public:
  /// Notes that backward has got `value` of `slot`. In plain code the user's saved-tensor hooks
  /// would have got the slot's tensor. `others_have_it`: the forward's memory still exists.
  void add(std::shared_ptr<const Region> region, const Slot& slot, const at::Tensor& value,
           bool others_have_it);
  /// Notes that backward has got `value` of `kept`, which a store or the options' hooks have
  /// brought back. `is_hooked`: see BackwardPasses::note_kept().
  void add(std::shared_ptr<const Region> region, const KeptTensor& kept, const at::Tensor& value,
           bool is_hooked);

  /// Throws NotImplementedError if a value, or the forward's memory of it, was written and somebody
  /// may see the write. `is_retained`: another pass may come.
  void check(bool is_retained) const;

 private:
  struct Given {
    const Slot* slot = nullptr;        // Null for a kept tensor.
    const KeptTensor* kept = nullptr;  // Null for a slot.
    const SavedVersion* saved = nullptr;
    const void* memory = nullptr;
    const void* node = nullptr;  // The node that got the value; never dereferenced.
    c10::VariableVersion version{};
    uint32_t before = 0;
    bool is_hooked = false;
    bool others_have_it = false;
  };

  void add(std::shared_ptr<const Region> region, Given given, const at::Tensor& value);
  const char* seen_by(const Given& given, bool is_retained) const;
  bool has_twin(const Given& given) const;
  std::string where(const Given& given) const;

  std::vector<Given> all_;
  std::shared_ptr<const Region> region_;  // Owns the slots and the kept tensors.
};

}  // namespace remat
