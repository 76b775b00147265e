// SPDX-License-Identifier: BSD-3-Clause

// A storage on its way out of a device and back, and the order in which a step asks for storages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <remat/offload/copy_event.h>
#include <remat/offload/offload_memory.h>

namespace remat::detail {

enum class Whereabouts : uint8_t {
  kWaiting,  ///< On the device, until a put() finds that nobody else holds it
  kLeaving,  ///< On the device; leaves when the copy out is done, unless `is_next`
  kAway,     ///< In `out.block`; on the device only while others hold `back.given`
  kComing,   ///< In `out.block`, and prefetched into `here`
  kStays,    ///< On the device for good
};

/// A storage that the mover manages. Guarded by the mover's mutex.
struct MovedStorage {
  /// The way out of the device.
  struct Out {
    std::unique_ptr<OffloadMemory::Block> block;
    size_t memory = 0;    ///< Index of the block's memory
    CopyEventPtr copy;    ///< The copy into the block; null: done
    std::string failure;  ///< Which memory failed and how, for errors; "": none
  };
  /// The way back.
  struct Back {
    CopyEventPtr copy;   ///< The last copy from the block
    int64_t stream = 0;  ///< Stream that allocated the memory that the copy fills
    /// The storage that others may hold on the device: the one put, or the last one fetched
    c10::weak_intrusive_ptr<c10::StorageImpl> given{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::VariableVersion version{0};  ///< Version counter of the tensors on `given`
  };

  Whereabouts whereabouts = Whereabouts::kWaiting;
  at::Storage here;  ///< The storage on the device; null if kAway
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  uint32_t version = 0;   ///< Version of the tensor at put()
  CopyEventPtr computed;  ///< Done when the storage has its values
  Out out;
  bool is_next = false;  ///< If kLeaving: stays on the device, because it will be needed soon
  Back back;
  size_t tickets = 1;       ///< Number of live tickets for the storage
  uint64_t sequence = 0;    ///< Number in the order of put(), counted over all steps
  std::string description;  ///< For errors: "region 'block', call 'attention' (4096 bytes)"
};

/// Learns the order in which a step asks for storages. Predicts this order for the next step if
/// that step puts the same sizes, otherwise the reverse order of put(). A storage that a step asks
/// for several times is predicted as often. A step ends when drop() was called for each storage
/// put.
class StepOrder {
 public:
  /// Gives the storage the next sequence number.
  void put(MovedStorage& moved);

  /// Records that backward asked for the storage. False if the storage was put in an earlier step.
  bool got(const MovedStorage& moved);

  /// Call it when the storage is gone.
  void drop(const MovedStorage& moved);

  /// Skips `skipped` predictions and returns the next predicted storage. Null if that storage is
  /// gone; nullopt if there is no prediction.
  std::optional<MovedStorage*> next(size_t skipped) const;

 private:
  static constexpr size_t kUnknown = static_cast<size_t>(-1);

  bool is_as_learned() const { return matches_ && bytes_.size() == learned_bytes_.size(); }
  void find_place(size_t number);
  void end_step();

  // Bytes and storages of this step. A storage's number in the order of put() is its index here.
  std::vector<int64_t> bytes_;
  std::vector<MovedStorage*> stored_;  // null: gone
  uint64_t first_sequence_ = 0;        // MovedStorage::sequence of number 0
  uint64_t next_sequence_ = 0;
  size_t live_ = 0;           // storages that are not gone, of all steps
  std::vector<size_t> asks_;  // numbers of the storages asked for so far, in order
  size_t last_ = kUnknown;    // the number last asked for

  std::vector<int64_t> learned_bytes_;
  std::vector<size_t> learned_asks_;
  size_t place_ = 0;  // index into learned_asks_, right after the number last asked for
  bool matches_ = true;
};

}  // namespace remat::detail
