// SPDX-License-Identifier: BSD-3-Clause

// The ops of a region's forward in order, with what they were called on: what a replay is compared
// with.
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

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Where a tensor comes from, seen from one region: made in it by what a replay runs again, with
/// the op that has made or written it last, if that is written down, or the leaf that it is a cast
/// of, or that nobody has written it yet; from outside, with the number
/// of its storage in the region's OutsideLog; or left by a SAVE call, with the number of the
/// CallProduct. A replay meets unknown ones too.
class Origin {
 public:
  static Origin inside() { return Origin(kInside); }
  static Origin unknown() { return Origin(kUnknown); }
  /// Made by a SAVE call, and no result of it.
  static Origin in_call() { return Origin(kInCall); }
  /// Made inside by empty() and its kind, and not written by an op.
  static Origin unwritten() { return Origin(kUnwritten); }
  /// The function has laid a tensor on a storage that came from no op (torch.load, pickle), by
  /// set_(), and no op has read it.
  static Origin given() { return Origin(kGiven); }
  /// Of the results of an op that is not written down.
  static Origin made_by(const OpInfo& op) { return op.is_uninitialised() ? unwritten() : inside(); }
  static Origin outside(size_t number) { return numbered(number, 0); }
  static Origin product(size_t number) { return numbered(number, 1); }
  /// Result number `result` of the op that comes as number `op` in the region's log.
  static Origin made(size_t op, size_t result) {
    return numbered((op * kResults + result % kResults) % kMostMade, 2);
  }
  /// Made inside by a cast of `source`, which has that origin: see Note [Casts that a cache
  /// answers]. `layout`: layout_hash() of it, as leaves may share a storage.
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
  /// It is known by which op.
  bool is_made() const { return is_numbered(2); }
  /// That op's number, for messages.
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
  static constexpr uint32_t kFirstNumbered = 8;  // divisible by kKinds
  static constexpr uint32_t kKinds = 4;
  static constexpr size_t kResults = 16;                // beyond, others have the same numbers
  static constexpr size_t kMostMade = (1U << 20U) - 2;  // likewise; all fit into a header word
  static Origin numbered(size_t number, uint32_t kind) {
    return Origin(static_cast<uint32_t>(kFirstNumbered + kKinds * number + kind));
  }
  bool is_numbered(uint32_t kind) const {
    return value_ >= kFirstNumbered && value_ % kKinds == kind;
  }
  explicit Origin(uint32_t value) : value_(value) {}
  uint32_t value_;
};

/// One op in words: which op, then per argument its tensors (dtype, device, sizes, strides,
/// requires grad, origin) or its value. Two calls with equal words do the same but for the data in
/// the tensors.
///
/// Note [Words of an op]: word 0 is the address of the OpInfo with the number of words in its upper
/// 16 bits (0xFFFF: it is word 1). Then one header word per value, its kind (OpWord) in the low 8
/// bits, followed by its payload, in which any two values differ that can be told apart: numbers by
/// their bits, texts by their bytes. A named call has the address 1; its first value is a hash of
/// its name and policy.
class REMAT_API OpWords {
 public:
  void begin(const OpInfo& info);
  /// Begins a named call instead of an op.
  void begin_call(uint64_t hash);
  /// `moved`: by how many bytes it begins elsewhere in its memory than it did in the forward.
  void add_tensor(const at::Tensor& tensor, Origin origin, int64_t moved = 0);
  /// Of a tensor of a Python class, before it: tensor_class().
  void add_class(uint64_t tensor_class);
  /// Any argument but tensors; of a list of tensors, which ones are there. Never throws what the
  /// argument causes.
  void add_value(const c10::IValue& value);
  /// Where the op's generator stands.
  void add_draw(uint64_t position);
  /// Under which other settings than those that the region began with; none if 0.
  void add_settings(uint64_t changed);
  /// Closes the op.
  void end();
  /// Takes the op back that is being written down.
  void drop_open() noexcept { words_.resize(start_); }

  /// An op of the region has made that: another one in the replay is no difference.
  void note_made(const c10::IValue& object);

  c10::ArrayRef<uint64_t> get() const { return words_; }
  void clear() {
    words_.clear();
    objects_.clear();
  }
  void shrink() { words_.shrink_to_fit(); }

  /// True if both say the same; where generators stand only if `draws` says so. A tensor of
  /// `replayed` whose origin is not known matches one from outside if `may_be_unknown` says so of
  /// the latter's number; it is asked once for each, in order.
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
  std::vector<WeakObject> objects_;       // see add_object()
  std::vector<WeakObject> made_objects_;  // these stay
  size_t start_ = 0;
};

/// A hash of how `tensor` lies in its memory, had it begun `moved` bytes further on; 0 if it is
/// contiguous from the beginning, or has no strides.
REMAT_API uint16_t layout_hash(const at::Tensor& tensor, int64_t moved = 0);

/// False for an op that makes a view and does nothing else.
///
/// Note [Views are known by what reads them]: they are not written down. Code that looks on makes
/// some, in the forward or in the replay only: torch's module trackers (of FlopCounterMode,
/// CommDebugMode, ...) reach the gradient accumulator of a leaf through a view. And what another
/// view would do to the region its readers tell: strides and offset are among their words. Views of
/// what has no strides (sparse and nested tensors, those of Python classes) are written down unless
/// they show the tensor as it is. So is lift_fresh: it is where values of the host are seen.
REMAT_API bool is_written_down(const OpCall& call);

/// The words of all ops of one forward, one after the other.
class REMAT_API OpLog {
 public:
  /// For the forward: words are appended to it.
  OpWords& writer() { return words_; }

  /// The forward has ended: gives back memory that is not needed.
  void finish() { words_.shrink(); }

  /// No replay will ask for it: a tape has taken its place.
  void drop() {
    words_ = {};
    broken_off_ = true;
  }

  /// Nothing more is written down, though more ops may follow.
  void break_off() { broken_off_ = true; }
  bool broken_off() const { return broken_off_; }

  /// The op or named call that begins at word `position`; empty at the end.
  c10::ArrayRef<uint64_t> at(size_t position) const;

  /// The position of what is written down next.
  size_t end() const { return words_.get().size(); }

  /// True if these are the words of a named call.
  static bool is_call(c10::ArrayRef<uint64_t> op);

  /// "aten::mul.Tensor(float32 [2, 3] on cpu, 2)"; of a named call the arguments only.
  static std::string describe(c10::ArrayRef<uint64_t> op);

  /// What most likely makes a replay call `replayed` where the forward called `logged`; a sentence.
  /// Named calls are equal here but for their arguments.
  static std::string likely_cause(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed);

 private:
  OpWords words_;
  bool broken_off_ = false;
};

}  // namespace remat
