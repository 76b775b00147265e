// SPDX-License-Identifier: BSD-3-Clause

// The ops of a region's forward as data, from which a replay fills the slots without the function.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/flattened_tensor.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/engine/replayer.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/tensor_meta.h>
#include <remat/tape/tape_trust.h>

namespace remat {

/// The contents of one storage between two writes.
///
/// Note [Values and views]: a tape records storages, not tensors. A storage gets a value when it is
/// made and a new value after each write; a tensor is a value and a layout (TapeRef). So views need
/// no record, and a replay of an in-place write gives the new value the old one's memory, unless
/// the old value is read later.
struct TapeValue {
  enum class Source : uint8_t {
    kRecord,   ///< Made by record `number`.
    kOutside,  ///< Outside storage `number`, as it was before the region wrote it.
    kProduct,  ///< CallProduct `number` of a SAVE call.
    kHeld,     ///< Held by the tape, at `number`.
    kMemory,   ///< TapeMemory `number`, which an op overwrites before any op reads it.
  };
  static constexpr uint32_t kNone = ~uint32_t{0};

  Source source;
  bool is_uninitialised = false;  ///< Made by an op like empty(), and not written since.
  uint32_t number;
  uint32_t layout = kNone;  ///< The layout in which the value was used last.
};

/// A tensor: a value and the tensor's layout in it. Without a value, the tensor is undefined.
struct TapeRef {
  uint32_t value = TapeValue::kNone;
  uint32_t layout = TapeValue::kNone;
  bool defined() const { return value != TapeValue::kNone; }
};

/// A record's result that lies in new memory.
struct TapeOutput {
  uint16_t result;   ///< Index of the op's result.
  uint16_t element;  ///< Index in a list of tensors; 0 for a tensor.
  TapeRef ref;
};

/// Memory that a replay allocates for an op that overwrites it. If the memory was made by empty()
/// in another unit of a cut tape, the op's unit allocates new memory, because unwritten memory is
/// not kept across cuts.
struct TapeMemory {
  size_t size_bytes;
  c10::Device device;
  uint32_t original = TapeValue::kNone;  ///< The value that this memory replaces, or kNone.
};

/// A write by a record to a storage.
struct TapeWrite {
  uint32_t before;  ///< The storage's value before the write.
  uint32_t after;   ///< The storage's value after the write.
};

/// Consecutive entries of one of a tape's lists.
struct TapeRange {
  uint32_t begin = 0;
  uint16_t count = 0;
};

/// A call of an op that no other op called. A record has ranges of the tape's lists and no lists of
/// its own, because a tape has thousands of records.
struct TapeRecord {
  const OpInfo* op;
  uint32_t first_argument = 0;
  TapeRange refs{};
  TapeRange outputs{};
  TapeRange writes{};
  TapeRange generators{};  ///< Generators that the op drew from, with their states before it.
  bool grad_mode = true;   ///< Grad mode of the call; some ops return less when it is off.
  uint64_t tensors = 0;    ///< Bit i: argument i is a tensor.
  uint64_t lists = 0;      ///< Bit i: argument i is a list. Both bits: a list of optional tensors.
};

/// The content that a replay gives to a slot.
struct TapeSlot {
  /// `held` is for a tensor that no record makes, the other members are for a tensor subclass.
  struct Special {
    std::shared_ptr<const torch::autograd::SavedVariable> held;
    Unflatten unflatten;  ///< Makes the subclass from `parts`: Note [Wrappers on a tape].
    std::vector<TapeSlot> parts;
  };

  /// The tensor's value. Undefined for a held tensor. For a tensor subclass: on a cut tape the
  /// inner tensor that a record makes, if there is one, else undefined.
  TapeRef ref;
  std::shared_ptr<const Special> special{};  ///< Set for a held tensor or a subclass.
  uint64_t hash = 0;  ///< Hash of the tensor's bytes, if has_hashes(); 0: not compared.
  /// On a cut tape: autograd had freed the saved tensor when the function returned.
  bool is_dropped = false;
};

/// Calls f(ref) for the tensor in the slot, or for each part of the tensor subclass in it.
template <class F>
void for_each_ref(const TapeSlot& slot, F&& f) {
  if (slot.ref.defined()) f(slot.ref);
  if (!slot.special) return;
  for (const TapeSlot& part : slot.special->parts) for_each_ref(part, f);
}

/// Ops that are replayed together: a whole tape, or one segment or group of a cut tape (see Cuts).
struct TapePart {
  static constexpr uint32_t kOpen = ~uint32_t{0};

  std::vector<TapeSlot> slots{};  ///< Indexed by slot number in the part's region.
  uint32_t begin = 0;             ///< The part's records are [begin, end).
  uint32_t end = kOpen;
  uint32_t first_value = 0;  ///< The part's records make the values [first_value, end_value).
  uint32_t end_value = kOpen;
  bool is_group = false;
};

/// The ops and slots of one region. A TapeRecorder fills the tape on the forward's thread; then any
/// thread may read it. The class is large because records refer to many kinds of objects.
class REMAT_API Tape {
 public:
  const std::vector<TapeRecord>& records() const { return records_; }
  const std::vector<TapeValue>& values() const { return values_; }
  /// The whole tape as one part; for a cut tape, its planned segments, its groups, and then
  /// segments that were added while it was recorded.
  const std::vector<TapePart>& parts() const { return parts_; }
  c10::ArrayRef<c10::IValue> arguments(const TapeRecord& record) const {
    return c10::ArrayRef<c10::IValue>(arguments_.data() + record.first_argument,
                                      record.op->argument_count());
  }
  c10::ArrayRef<TapeRef> refs(const TapeRecord& record) const { return in(refs_, record.refs); }
  c10::ArrayRef<TapeOutput> outputs(const TapeRecord& record) const {
    return in(outputs_, record.outputs);
  }
  c10::ArrayRef<TapeWrite> writes(const TapeRecord& record) const {
    return in(writes_, record.writes);
  }
  c10::ArrayRef<GeneratorState> generators(const TapeRecord& record) const {
    return in(generators_, record.generators);
  }
  /// True if `wanted(value)` holds for a value that the record makes.
  template <class Wanted>
  bool makes_any(const TapeRecord& record, Wanted&& wanted) const {
    for (const TapeOutput& output : outputs(record)) {
      if (wanted(output.ref.value)) return true;
    }
    for (const TapeWrite& write : writes(record)) {
      if (wanted(write.after)) return true;
    }
    return false;
  }
  /// The distinct generators that ops of the part drew from.
  std::vector<at::Generator> generators(size_t part) const;
  const at::Tensor& held(uint32_t number) const { return held_[number]; }
  const TapeMemory& memory(uint32_t number) const { return memories_[number]; }

  /// Returns the tensor that the tape holds for outside storage `number`; undefined if there is
  /// none. May replay outer regions.
  at::Tensor unpack_outside(size_t number) const;

  /// True if the tape holds the tensor on that outside storage directly (a weight or a cast), not
  /// as a SavedVariable. The program may have given such a tensor other memory.
  bool holds_itself(size_t outside) const {
    return outside < outside_.size() && outside_[outside].leaf.defined();
  }

  /// Calls `visit` for each tensor that only the tape holds, or that the outer region holds for the
  /// tape. Leaves out weights and other tensors that others hold, too.
  void visit_held(c10::function_ref<void(const KeptValue&)> visit) const;

  const TensorLayout& layout(uint32_t number) const { return layouts_[number].first; }

  /// True if `tensor` has the given layout.
  bool has_layout(const at::Tensor& tensor, uint32_t layout) const;

  /// Returns a tensor on `storage` with the given layout, outside any graph.
  at::Tensor lay_out(const c10::Storage& storage, uint32_t layout) const;

  /// Like lay_out(), on a storage without memory, for ops that read shapes only.
  at::Tensor without_data(uint32_t layout) const;

  /// The reason why the tape cannot be replayed; empty if it can be.
  const std::string& failure() const { return failure_; }

  /// True if the slots have hashes for a replay to compare: Note [Trusting a tape].
  bool has_hashes() const { return has_hashes_; }
  /// True if a dispatch mode that the function opened has handled an op. Every replay of such a
  /// tape is compared with the forward, because the mode may compute anything in the op's place.
  bool is_under_mode() const { return is_under_mode_; }

  /// Running hashes of all ops in order, including those that no slot needs.
  const OpHashes& op_hashes() const { return op_hashes_; }

  /// Bytes of host memory used by the tape itself, without the tensors that it holds.
  size_t size_bytes() const;

  /// Name of the op that makes the value; empty if no op does.
  std::string maker(uint32_t value) const;

  /// One line per record, with its number: "12: %3 = aten::mul.Tensor(%1, 2)".
  std::string str() const;

 private:
  friend class CutUnits;
  friend class TapeRecorder;
  friend class SlotRecorder;
  friend class ValueRecorder;

  template <class T>
  static c10::ArrayRef<T> in(const std::vector<T>& list, const TapeRange& range) {
    return {list.data() + range.begin, range.count};
  }

  /// The tensor held for an outside storage, in `leaf` or `saved`; or in neither, if not needed.
  struct Outside {
    at::Tensor leaf;
    std::optional<torch::autograd::SavedVariable> saved;
    std::optional<TensorMeta> meta;  // Metadata of `saved`.
    HeldStorage storage;
    std::optional<TensorLayout> whole;  // Layout of `saved`, which covers the whole storage.
    size_t size_bytes = 0;
  };

  void clear();

  std::vector<TapeRecord> records_;
  std::vector<c10::IValue> arguments_;  // A None stands for a tensor, a length for a list.
  std::vector<TapeRef> refs_;
  std::vector<TapeOutput> outputs_;
  std::vector<TapeWrite> writes_;
  std::vector<TapeValue> values_;
  std::vector<TapePart> parts_ = std::vector<TapePart>(1);
  std::vector<std::pair<TensorLayout, c10::Device>> layouts_;
  std::vector<GeneratorState> generators_;
  std::vector<at::Tensor> held_;
  std::vector<KeptValue> held_slots_;
  std::vector<TapeMemory> memories_;
  std::vector<Outside> outside_;  // Indexed by number of the OutsideStorage.
  std::string failure_;
  bool has_hashes_ = false;
  bool is_under_mode_ = false;
  OpHashes op_hashes_;
};

}  // namespace remat
