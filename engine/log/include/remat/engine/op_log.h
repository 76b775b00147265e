// SPDX-License-Identifier: BSD-3-Clause

// The ops of a region's forward in order, with their arguments, for comparison with a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/complex.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Where a tensor comes from, as seen from one region. From inside: made by code that a replay runs
/// again, with the logged op that made or wrote it last, or with the leaf that it is a cast of.
/// From outside: with the number of its storage in the region's OutsideLog. From a SAVE call: with
/// the number of its CallProduct. In a replay an origin may also be unknown.
class Origin {
 public:
  static Origin inside() { return Origin(kInside); }
  static Origin unknown() { return Origin(kUnknown); }
  /// Made in a SAVE call, but not a result of it.
  static Origin in_call() { return Origin(kInCall); }
  /// Made inside by empty() and the like, and not yet written by an op.
  static Origin unwritten() { return Origin(kUnwritten); }
  /// The function has put the tensor by set_() on a storage that no op made (torch.load, pickle),
  /// and no op has read the tensor yet.
  static Origin given() { return Origin(kGiven); }
  /// The origin of results of an op that is not logged.
  static Origin made_by(const OpInfo& op) { return op.is_uninitialised() ? unwritten() : inside(); }
  static Origin outside(size_t number) { return numbered(number, 0); }
  static Origin product(size_t number) { return numbered(number, 1); }
  /// Result number `result` of op number `op` in the region's log.
  static Origin made(size_t op, size_t result) {
    return numbered((op * kResults + result % kResults) % kMostMade, 2);
  }
  /// Made inside by a cast of `source`: see Note [Casts that a cache answers]. `layout` is the
  /// layout_hash() of the source; it distinguishes leaves that share a storage.
  static Origin cast_of(Origin source, uint16_t layout) {
    if (source.is_outside())
      return numbered((source.number() + layout * size_t{64}) % kMostMade, 3);
    return source.is_made() || source.is_unknown() ? source : inside();
  }
  static Origin from_value(uint64_t value) { return Origin(static_cast<uint32_t>(value)); }

  bool is_inside() const {
    return value_ == kInside || value_ == kUnwritten || value_ == kGiven || is_made() || is_cast();
  }
  bool is_unwritten() const { return value_ == kUnwritten; }
  bool is_given() const { return value_ == kGiven; }
  bool is_cast() const { return is_numbered(3); }
  /// True if the op that made the tensor is known.
  bool is_made() const { return is_numbered(2); }
  /// If is_made(): the number of the op that made the tensor, for messages.
  size_t maker() const { return number() / kResults; }
  bool is_unknown() const { return value_ == kUnknown; }
  bool is_in_call() const { return value_ == kInCall; }
  bool is_outside() const { return is_numbered(0); }
  bool is_product() const { return is_numbered(1); }
  size_t number() const { return (value_ - kFirstNumbered) / kKinds; }
  uint32_t value() const { return value_; }

 private:
  static constexpr uint32_t kInside = 0;
  static constexpr uint32_t kUnknown = 1;
  static constexpr uint32_t kInCall = 2;
  static constexpr uint32_t kUnwritten = 3;
  static constexpr uint32_t kGiven = 4;
  static constexpr uint32_t kFirstNumbered = 8;  // Divisible by kKinds.
  static constexpr uint32_t kKinds = 4;
  static constexpr size_t kResults = 16;                // Higher numbers wrap around.
  static constexpr size_t kMostMade = (1U << 20U) - 2;  // Higher ones wrap; all fit a header word.
  static Origin numbered(size_t number, uint32_t kind) {
    return Origin(static_cast<uint32_t>(kFirstNumbered + kKinds * number + kind));
  }
  bool is_numbered(uint32_t kind) const {
    return value_ >= kFirstNumbered && value_ % kKinds == kind;
  }
  explicit Origin(uint32_t value) : value_(value) {}
  uint32_t value_;
};

/// Writes ops as 64-bit words: which op, then for each argument its tensors (dtype, device, sizes,
/// strides, requires grad, origin) or its value. Two calls with equal words compute the same
/// function of the data in their tensors.
///
/// Note [Words of an op]: word 0 is the address of the OpInfo with the number of words in its upper
/// 16 bits (0xFFFF: word 1 has the number). Then each value has one header word with its kind
/// (OpWord) in the low 8 bits, followed by its payload. Distinguishable values have different
/// payloads: numbers are stored by their bits, texts by their bytes. A named call has the address
/// 1; its first value is a hash of its name and policy.
class REMAT_API OpWords {
 public:
  void begin(const OpInfo& info);
  /// Begins a named call instead of an op.
  void begin_call(uint64_t hash);
  /// `moved`: the forward's tensor began this number of bytes later in its memory.
  void add_tensor(const at::Tensor& tensor, Origin origin, int64_t moved = 0);
  /// Adds the tensor_class() of the tensor subclass that add_tensor() adds next.
  void add_class(uint64_t tensor_class);
  /// Adds an argument that is not a tensor. For a list of tensors, adds which elements are defined.
  /// Ignores exceptions that the argument's own code throws.
  void add_value(const c10::IValue& value);
  /// Adds the position of the op's generator.
  void add_draw(uint64_t position);
  /// Adds how the settings differ from those at the region's beginning, unless `changed` is 0.
  void add_settings(uint64_t changed);
  void end();
  /// Discards the op being written.
  void drop_open() noexcept { words_.resize(start_); }

  /// Notes that an op of the region has made `object`. The replay may then have another object.
  void note_made(const c10::IValue& object);

  c10::ArrayRef<uint64_t> get() const { return words_; }
  void clear() {
    words_.clear();
    objects_.clear();
  }
  void shrink() { words_.shrink_to_fit(); }

  /// True if both ops are equal. Generator positions are compared only if `draws`. A tensor of
  /// unknown origin in `replayed` matches a logged tensor from outside if may_be_unknown() is true
  /// for the number of the logged storage. match() asks once for each such pair, in order.
  static bool match(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed, bool draws,
                    c10::function_ref<bool(size_t number)> may_be_unknown);

 private:
  void add_list(const c10::IValue& value);
  void add_rare(const c10::IValue& value);
  void add_object(const c10::IValue& value);
  void add_parts(c10::complex<double> number);
  void add_text(std::string_view text);
  void add_bytes(const void* bytes, size_t size, size_t count);
  static bool match_objects(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed);

  std::vector<uint64_t> words_;
  using WeakObject = c10::weak_intrusive_ptr<torch::CustomClassHolder>;
  std::vector<WeakObject> objects_;       // See add_object().
  std::vector<WeakObject> made_objects_;  // Made by ops of the region; clear() keeps these objects.
  size_t start_ = 0;
};

/// A hash of the tensor's layout, as if the tensor began `moved` bytes later; 0 if the tensor is
/// then contiguous from the beginning, or has no strides.
REMAT_API uint16_t layout_hash(const at::Tensor& tensor, int64_t moved = 0);

/// False for an op that only makes a view.
///
/// Note [Views are known by what reads them]: views are not logged, because code that only observes
/// may make views in the forward alone or in the replay alone: torch's module trackers (of
/// FlopCounterMode, CommDebugMode, ...) reach the gradient accumulator of a leaf through a view. A
/// different view shows in the ops that read it, because strides and offset are among their words.
/// Views of tensors without strides (sparse and nested tensors, tensor subclasses) are logged
/// unless they show the whole tensor. The op lift_fresh, through which host values enter, is
/// logged, too.
REMAT_API bool is_written_down(const OpCall& call);

/// The words of all ops of one forward in order.
class REMAT_API OpLog {
 public:
  /// The words to append to during the forward.
  OpWords& writer() { return words_; }

  /// Call it when the forward has ended. Frees unneeded memory.
  void finish() { words_.shrink(); }

  /// Frees the words and stops logging. Call it when a tape replaces the log, because no replay
  /// needs the words then.
  void drop() {
    words_ = {};
    broken_off_ = true;
  }

  /// Stops logging although more ops may follow in the forward.
  void break_off() { broken_off_ = true; }
  bool broken_off() const { return broken_off_; }

  /// The op or named call that begins at word `position`; empty at the end.
  c10::ArrayRef<uint64_t> at(size_t position) const;

  /// The position of the next entry.
  size_t end() const { return words_.get().size(); }

  /// True if `op` consists of the words of a named call.
  static bool is_call(c10::ArrayRef<uint64_t> op);

  /// Text such as "aten::mul.Tensor(float32 [2, 3] on cpu, 2)"; a named call has only arguments.
  static std::string describe(c10::ArrayRef<uint64_t> op);

  /// A sentence on the most likely reason why a replay calls `replayed` where the forward called
  /// `logged`. Named calls passed here differ only in their arguments.
  static std::string likely_cause(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed);

 private:
  OpWords words_;
  bool broken_off_ = false;
};

}  // namespace remat
