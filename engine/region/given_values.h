// SPDX-License-Identifier: BSD-3-Clause

// The saved tensors that one backward pass has got from regions and may not write.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/slot.h>

namespace remat {

class Region;

/// Note [Writes in a backward]: the backward of a custom function may write in place what it has
/// saved. In plain code everybody who has that memory sees the write: an attribute of the context,
/// the next backward of a retained graph, and another saved tensor, whose version check then
/// raises. The tensors that a region makes again have versions of their own. So a pass notes what
/// custom functions get from regions, and a node that then gets the written memory raises as in
/// plain code. Nothing raises if a store has given the two nodes copies: autograd itself may add to
/// a copy that a node has returned as its gradient.
///
/// With saved-tensor hooks, the hooks decide whether a saved tensor is that memory or a copy. A
/// region cannot know what hooks would have done. So each value that hooks would have got is noted,
/// and a write that somebody may see raises when the pass ends, or when a node asks for the memory.

/// A tensor that a region has saved: a slot, or a tensor that a call has kept.
struct RegionSaved {
  const Region& region;
  const Slot* slot = nullptr;
  const KeptTensor* kept = nullptr;

  const SavedVersion& version() const { return slot ? slot->version : *kept->version; }
  const TensorMeta& meta() const { return slot ? slot->meta : kept->meta; }
  std::string where() const;
};

/// Usable from any thread.
class GivenValues {
 public:
  /// Who else, by the saved-tensor hooks of plain code, may have the memory of a value.
  enum class Hooked { kNo, kByCopy, kByOthers };

  explicit GivenValues(int graph_task) : graph_task_(graph_task) {}
  GivenValues(const GivenValues&) = delete;
  GivenValues& operator=(const GivenValues&) = delete;
  ~GivenValues();

  /// Those of the backward pass `graph_task`: all regions share them.
  static std::shared_ptr<GivenValues> of_task(int graph_task);

  /// Notes that the node of this thread has got `value` of `saved`.
  void add(const RegionSaved& saved, const at::Tensor& value, Hooked hooked);
  /// Throws if another value of the memory of `saved` has been written in this pass. `memory` is
  /// that of the value which a node is about to get; null if it is not yet known.
  void check_read(const RegionSaved& saved, const void* memory) const;
  /// Call it when the pass has succeeded. Throws NotImplementedError if a value, or the forward's
  /// memory of it, was written and somebody may see the write. `is_retained`: another pass may
  /// come.
  void check_at_end(bool is_retained);

 private:
  struct Given {
    RegionSaved saved;
    std::shared_ptr<const Region> owner;  // Of what `saved` refers to.
    Hooked hooked = Hooked::kNo;
    const void* memory = nullptr;
    const void* node = nullptr;  // The node that got the value; never dereferenced.
    c10::VariableVersion version{};
    uint32_t before = 0;

    bool is_written() const;
    [[noreturn]] void refuse(const char* seen_by_whom) const;
  };

  static const char* seen_by(const Given& given, const std::vector<Given>& all, bool is_retained);
  static bool has_twin(const Given& given, const std::vector<Given>& all);

  const int graph_task_;
  std::atomic<bool> is_empty_{true};
  mutable std::mutex mutex_;
  std::vector<Given> all_;  // Guarded by mutex_.
};

}  // namespace remat
