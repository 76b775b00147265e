// SPDX-License-Identifier: BSD-3-Clause

// The records and saved tensors that cuts were made for.
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

#include <remat/tape/export.h>

namespace remat {

/// What a tape is expected to be, record by record, by the numbers of its values. A plain value;
/// const members may be called by many threads at once.
class REMAT_API ExpectedTape {
 public:
  /// Of a saved tensor that no record makes: from outside, or held by the tape itself.
  static constexpr uint32_t kNoValue = ~uint32_t{0};

  static constexpr size_t kAnyBytes = ~size_t{0};

  struct Record {
    std::string op;      ///< "aten::mm"
    uint64_t reads = 0;  ///< hash_reads(op, the values that it reads)
    uint64_t makes = 0;  ///< hash_makes(...)
    /// Of new memory that it and those before it may make; more is a difference.
    size_t most_bytes = kAnyBytes;
  };

  struct Slot {
    /// The record that was open, or about to be written, when it was saved. A slot that is saved in
    /// the same segment as expected is no difference.
    uint32_t record = 0;
    uint32_t value = kNoValue;
    /// Nothing holds it any more when the function has returned. One that is held then is a
    /// difference at the function's end: no replay of the plan makes it.
    bool is_dropped = false;
    bool operator==(const Slot&) const = default;
  };

  std::vector<Record> records{};
  bool any_ops = false;       ///< Only slots are compared.
  bool without_cpu = false;   ///< Memory of the CPU does not count as new memory.
  std::vector<Slot> slots{};  ///< In the order in which autograd saves them.

  /// Called on its thread when a region's forward begins to run by cuts that were made for this
  /// tape, with the region's name. May be empty.
  std::function<void(std::string_view region)> on_use{};

  /// The values that an op reads, each once, in order.
  static uint64_t hash_reads(std::string_view op, c10::ArrayRef<uint32_t> values);
  static uint64_t hash_reads(size_t name_hash, c10::ArrayRef<uint32_t> values);

  /// The new values that it returns, in order; and those that it writes: before and after.
  static uint64_t hash_makes(c10::ArrayRef<uint32_t> results,
                             c10::ArrayRef<std::pair<uint32_t, uint32_t>> writes);
};

/// Where a tape differs from what its cuts were made for.
struct TapeDifference {
  size_t record = 0;       ///< The first that differs, or that was not expected or did not come.
  std::string expected{};  ///< Its op; "" for the function's end.
  std::string got{};       ///< "" for the function's end.
  bool in_slot = false;    ///< The ops are the same: what autograd saves differs.
  size_t most_bytes = 0;   ///< The ops are the same, but make more memory than that; 0: not so.
  size_t got_bytes = 0;    ///< With most_bytes: so much, the record included.
  /// The slot that was not expected; none if it is not one, or with in_slot if one did not come.
  std::optional<ExpectedTape::Slot> got_slot{};
  size_t slots = 0;  ///< With got_slot or in_slot: so many before were as expected.

  /// "expected aten::sin as record 3, got aten::exp"
  REMAT_API std::string str() const;
};

}  // namespace remat
