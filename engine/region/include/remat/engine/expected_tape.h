// SPDX-License-Identifier: BSD-3-Clause

// Contents that a tape was expected to have when its cuts were made, and differences from them.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

/// The records and saved tensors that a tape is expected to have; numbers stand for its values.
/// Const members may be called by many threads at once.
class REMAT_API ExpectedTape {
 public:
  /// Stands for the value of a saved tensor that no record makes: the tensor comes from outside, or
  /// the tape holds it.
  static constexpr uint32_t kNoValue = ~uint32_t{0};

  static constexpr size_t kAnyBytes = ~size_t{0};

  struct Record {
    std::string op;      ///< Such as "aten::mm".
    uint64_t reads = 0;  ///< hash_reads() of the op and the values that it reads.
    uint64_t makes = 0;  ///< hash_makes() of its results and writes.
    /// Limit in bytes on the new memory of this record and all before it. Exceeding it is a
    /// difference.
    size_t most_bytes = kAnyBytes;
  };

  struct Slot {
    /// The record that was open, or about to be written, when the tensor was saved. Another record
    /// of the same expected segment is no difference.
    uint32_t record = 0;
    uint32_t value = kNoValue;
    /// True if nothing holds the tensor any more when the function has returned. If something does,
    /// that is a difference at the function's end, because no replay of the plan makes the tensor.
    bool is_dropped = false;
    bool operator==(const Slot&) const = default;
  };

  std::vector<Record> records{};
  bool any_ops = false;       ///< Compare slots only, not ops.
  bool without_cpu = false;   ///< Do not count CPU memory as new memory.
  std::vector<Slot> slots{};  ///< In the order in which autograd saves them.

  /// Called with the region's name when its forward begins to run with cuts made for this tape, on
  /// the forward's thread. May be empty.
  std::function<void(std::string_view region)> on_use{};

  /// Hash of an op and the values that it reads, each once, in order.
  static uint64_t hash_reads(std::string_view op, c10::ArrayRef<uint32_t> values);
  static uint64_t hash_reads(size_t name_hash, c10::ArrayRef<uint32_t> values);

  /// Hash of the new values that an op returns, in order, and of the value before and after each of
  /// its writes.
  static uint64_t hash_makes(c10::ArrayRef<uint32_t> results,
                             c10::ArrayRef<std::pair<uint32_t, uint32_t>> writes);
};

/// The first difference between a tape and the tape for which its cuts were made.
struct TapeDifference {
  size_t record = 0;       ///< The first record that differs, is unexpected or is missing.
  std::string expected{};  ///< Op of the expected record; "" at the function's end.
  std::string got{};       ///< Op of the actual record; "" at the function's end.
  bool in_slot = false;    ///< True if the ops are equal but the saved tensors differ.
  size_t most_bytes = 0;   ///< If equal ops allocate too many bytes: the limit; else 0.
  size_t got_bytes = 0;    ///< With most_bytes: bytes allocated by this record and all before.
  /// The saved tensor that was not expected. If in_slot is true and got_slot is empty, an expected
  /// slot is missing.
  std::optional<ExpectedTape::Slot> got_slot{};
  size_t slots = 0;  ///< With got_slot or in_slot: number of slots that matched.

  /// Example: "expected aten::sin as record 3, got aten::exp".
  REMAT_API std::string str() const;
};

}  // namespace remat
