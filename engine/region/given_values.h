// SPDX-License-Identifier: BSD-3-Clause

// The saved tensors that one backward pass has got from regions and may not write.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <remat/engine/call_log.h>
#include <remat/engine/slot.h>

namespace remat {

class Region;

/// Note [Writes in a backward]: the backward of a custom function may write in place what it has
/// saved. In plain code everybody who has that memory sees the write: an attribute of the context,
/// the next backward of a retained graph, and another saved tensor, whose version check then
/// raises. The tensors that a region makes again have versions of their own. So each backward pass
/// has a list of what custom functions got from regions. A node that asks for memory which another
/// node has written raises, as in plain code. If a store has given two nodes separate copies, a
/// write to one copy does not make the other node raise, because a changed version is no proof of
/// a user's write: autograd itself may add to a copy that a node has returned as its gradient.
///
/// With saved-tensor hooks, the hooks decide whether a saved tensor is that memory or a copy. A
/// region cannot know what hooks would have done. So each value that hooks would have got is
/// listed, and a write that somebody may see raises when the backward pass ends, or when a node
/// asks for the memory.

/// A tensor that a region has saved: a slot, or a tensor that a call has kept.
struct RegionSaved {
  const Region& region;
  const Slot* slot = nullptr;
  const KeptTensor* kept = nullptr;

  const SavedVersion& version() const { return slot ? slot->version : *kept->version; }
  const TensorMeta& meta() const { return slot ? slot->meta : kept->meta; }
  std::string where() const;
};

/// The values that the nodes of one backward pass have got from regions. Usable from any thread.
class GivenValues {
 public:
  /// Whether the user's saved-tensor hooks would have got a value in plain code, and who else may
  /// still have the forward's memory of the value.
  enum class Hooked {
    kNo,
    kByCopy,    ///< Nobody: only a copy that the hooks have made may exist.
    kByOthers,  ///< Somebody, such as the context of a custom function.
  };

  explicit GivenValues(int graph_task) : graph_task_(graph_task) {}
  GivenValues(const GivenValues&) = delete;
  GivenValues& operator=(const GivenValues&) = delete;
  ~GivenValues();

  /// Returns the object of the backward pass `graph_task`, which all regions share.
  static std::shared_ptr<GivenValues> of_task(int graph_task);

  /// Notes that the node that this thread runs has got `value` for `saved`.
  void add(const RegionSaved& saved, const at::Tensor& value, Hooked hooked);
  /// Throws if this backward pass has written a tensor that shared memory with `saved` in the
  /// forward. `memory`: the memory that a node is about to get for `saved`; null if not yet known.
  void check_read(const RegionSaved& saved, const void* memory) const;
  /// Throws if this thread's backward pass has written `memory`, which hooks have brought back for
  /// a region's argument, so that the region's replay would begin with other values.
  static void check_argument(const void* memory);
  /// Call it when the backward pass has succeeded. Throws NotImplementedError if a listed value was
  /// written, or the memory that it had in the forward, and somebody may see the write.
  /// `is_retained`: another backward pass may come.
  void check_at_end(bool is_retained);

 private:
  struct Given {
    RegionSaved saved;
    std::shared_ptr<const Region> owner;  // Keeps alive what `saved` refers to.
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
  std::vector<Given> all_;  // Guarded by mutex_, as is by_counter_.
  // Positions in all_, by the version counter that the tensor had in the forward. Nodes ask for
  // thousands of tensors, of which few have been listed.
  std::unordered_map<const void*, c10::SmallVector<size_t, 1>> by_counter_;
};

}  // namespace remat
