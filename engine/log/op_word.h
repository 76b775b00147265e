// SPDX-License-Identifier: BSD-3-Clause

// The encoding of an op's values in words: Note [Words of an op].
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace remat {

/// Kind of a value, in the low 8 bits of its header word. Each line says what the rest of the
/// header word holds and, after the semicolon, what the payload words hold.
enum class OpWord : uint8_t {
  kTensor,  ///< Fields below; sizes, layout, wrapped number.
  kNone,    ///< Nothing.
  kInt,     ///< Nothing; the number. kDouble and kBool are alike.
  kDouble,
  kBool,
  kInts,  ///< Count; the elements. kDoubles (two for a complex number) and kBools are alike.
  kDoubles,
  kBools,
  kText,    ///< Number of bytes; the bytes, padded with zeros to whole words.
  kDevice,  ///< Nothing; type and index in one word. kGenerator is alike.
  kGenerator,
  kTensors,   ///< Length of a list of tensors; bit i is set if element i is defined. The tensors
              ///< follow as values of their own.
  kList,      ///< Number of values that follow, for a list, tuple or dict.
  kObject,    ///< Nothing; a hash of the object's class, and the object's address.
  kHash,      ///< Nothing; a hash.
  kDraw,      ///< Nothing; a generator's position.
  kSettings,  ///< Nothing; ComputeSettings::changed().
  kClass,  ///< Nothing; a hash of a tensor's class and of the class's own metadata: tensor_class().
  kOther   ///< Nothing.
};

// Fields of a tensor's header word.
inline constexpr unsigned kDtypeShift = 8;
inline constexpr unsigned kDeviceShift = 16;
inline constexpr unsigned kIndexShift = 24;
inline constexpr unsigned kFlagShift = 32;
inline constexpr unsigned kDimShift = 35;
inline constexpr unsigned kOriginShift = 42;
inline constexpr uint64_t kRequiresGrad = uint64_t{1} << kFlagShift;
inline constexpr uint64_t kHasValue = uint64_t{2} << kFlagShift;  // The tensor wraps a number.
inline constexpr uint64_t kLaidOut = uint64_t{4}
                                     << kFlagShift;  // Not contiguous from the beginning.
inline constexpr uint64_t kDimMask = 0x7F;
inline constexpr uint64_t kOriginMax = (uint64_t{1} << (64 - kOriginShift)) - 1;

// Fields of a tensor's layout word: a hash of the strides, and whether the tensor is not
// contiguous, conjugated or negated; above these, the storage offset in elements.
inline constexpr unsigned kOffsetShift = 32;
inline constexpr uint64_t kStrided = 1;
inline constexpr uint64_t kConjugated = 2;
inline constexpr uint64_t kNegated = 4;
inline constexpr uint64_t kStridesMask = 0xFFFFFFF8;

// Fields of an op's word 0.
inline constexpr uint64_t kAddressBits = 48;
inline constexpr uint64_t kManyWords = 0xFFFF;  // Word 1 has the number of words.
inline constexpr uint64_t kNamedCall = 1;       // In place of an OpInfo's address.

inline constexpr size_t kWordBytes = sizeof(uint64_t);

inline uint64_t header(OpWord kind, uint64_t rest = 0) {
  return static_cast<uint64_t>(kind) | rest << 8U;
}

inline uint64_t byte_at(uint64_t word, unsigned shift) {
  return word >> shift & 0xFFU;
}

inline OpWord kind_of(uint64_t head) {
  return static_cast<OpWord>(head & 0xFFU);
}

inline uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline double double_of(uint64_t bits) {
  double value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline c10::ScalarType dtype_of(uint64_t head) {
  return static_cast<c10::ScalarType>(byte_at(head, kDtypeShift));
}

inline size_t dim_of(uint64_t head) {
  return head >> kDimShift & kDimMask;
}

/// Number of layout words of a tensor with this header.
inline size_t layout_words(uint64_t head) {
  return (head & kLaidOut) != 0 ? 1 : 0;
}

/// Number of words for the number that a tensor with this header wraps.
inline size_t wrapped_words(uint64_t head) {
  if ((head & kHasValue) == 0) return 0;
  return c10::isComplexType(dtype_of(head)) ? 2 : 1;
}

inline size_t payload_size(uint64_t head) {
  switch (kind_of(head)) {
    case OpWord::kTensor:
      return dim_of(head) + layout_words(head) + wrapped_words(head);
    case OpWord::kInt:
    case OpWord::kDouble:
    case OpWord::kBool:
    case OpWord::kDevice:
    case OpWord::kGenerator:
    case OpWord::kHash:
    case OpWord::kDraw:
    case OpWord::kSettings:
    case OpWord::kClass:
      return 1;
    case OpWord::kObject:
      return 2;
    case OpWord::kInts:
    case OpWord::kDoubles:
    case OpWord::kBools:
      return head >> 8U;
    case OpWord::kText:
      return ((head >> 8U) + kWordBytes - 1) / kWordBytes;
    case OpWord::kTensors:
      return ((head >> 8U) + 63) / 64;
    default:
      return 0;
  }
}

/// Index of an op's first value.
inline size_t first_value(c10::ArrayRef<uint64_t> op) {
  return op[0] >> kAddressBits == kManyWords ? 2 : 1;
}

}  // namespace remat
