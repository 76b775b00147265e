// SPDX-License-Identifier: BSD-3-Clause

// The ops of a region's forward in order, with what they were called on: what a replay is compared
// with.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Where a tensor comes from, seen from one region: made in it, or from outside; then the number of
/// its storage in the region's OutsideLog. A replay meets unknown ones too.
class Origin {
 public:
  static Origin inside() { return Origin(kInside); }
  static Origin unknown() { return Origin(kUnknown); }
  static Origin outside(size_t number) {
    return Origin(static_cast<uint32_t>(kFirstOutside + number));
  }

  bool is_outside() const { return value_ >= kFirstOutside; }
  bool is_unknown() const { return value_ == kUnknown; }
  size_t number() const { return value_ - kFirstOutside; }
  uint32_t value() const { return value_; }

 private:
  static constexpr uint32_t kInside = 0;
  static constexpr uint32_t kUnknown = 1;
  static constexpr uint32_t kFirstOutside = 2;
  explicit Origin(uint32_t value) : value_(value) {}
  uint32_t value_;
};

/// One op in words: which op, then per argument its tensors (dtype, device, sizes, requires grad,
/// origin) or its value. Two calls with equal words do the same but for the data in the tensors.
///
/// Note [Words of an op]: word 0 is the address of the OpInfo with the number of words in its upper
/// 16 bits (0xFFFF: it is word 1). Then one header word per value, its kind in the low 8 bits,
/// followed by its payload. Generators and the like are left out.
class REMAT_API OpWords {
 public:
  void begin(const OpInfo& info);
  void add_tensor(const at::Tensor& tensor, Origin origin);
  /// Any argument but tensors and lists of them.
  void add_value(const c10::IValue& value);
  /// Closes the op.
  void end();

  c10::ArrayRef<uint64_t> get() const { return words_; }
  void clear() { words_.clear(); }
  void shrink() { words_.shrink_to_fit(); }

  /// True if both say the same. A tensor of `replayed` whose origin is not known matches one from
  /// outside if `may_be_unknown` says so of the latter's number; it is asked once for each, in
  /// order.
  static bool match(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed,
                    c10::function_ref<bool(size_t number)> may_be_unknown);

 private:
  std::vector<uint64_t> words_;
  size_t start_ = 0;
};

/// The words of all ops of one forward, one after the other.
class REMAT_API OpLog {
 public:
  /// For the forward: words are appended to it.
  OpWords& writer() { return words_; }

  /// The forward has ended: gives back memory that is not needed.
  void finish() { words_.shrink(); }

  /// Nothing more is written down, though more ops may follow.
  void break_off() { broken_off_ = true; }
  bool broken_off() const { return broken_off_; }

  /// The op that begins at word `position`; empty at the end.
  c10::ArrayRef<uint64_t> at(size_t position) const;

  /// "aten::mul.Tensor(float32 [2, 3] on cpu, 2)"
  static std::string describe(c10::ArrayRef<uint64_t> op);

  /// What most likely makes a replay call `replayed` where the forward called `logged`; a sentence.
  static std::string likely_cause(c10::ArrayRef<uint64_t> logged, c10::ArrayRef<uint64_t> replayed);

 private:
  OpWords words_;
  bool broken_off_ = false;
};

}  // namespace remat
