// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a step profile.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "step_fault.h"

namespace remat::detail {

namespace {

using Fault = std::optional<StepFault>;

constexpr int64_t max_bytes = int64_t{1} << 50;
constexpr double max_time_us = 1e9;
constexpr size_t max_count = 1000000;

std::string item(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

Fault check_bytes(const std::string& path, int64_t bytes) {
  if (bytes >= 0 && bytes <= max_bytes) return std::nullopt;
  return StepFault{path, "0 to 2^50 bytes", std::to_string(bytes), "Give bytes."};
}

Fault check_time(const std::string& path, double us) {
  if (us >= 0 && us <= max_time_us) return std::nullopt;  // false for NaN
  return StepFault{path, "0 to 1e9 us", std::to_string(us), "Give microseconds."};
}

Fault check_index(const std::string& path, int64_t index, int64_t from, size_t size) {
  if (index >= from && index < static_cast<int64_t>(size)) return std::nullopt;
  return StepFault{path, std::to_string(from) + " to " + std::to_string(int64_t(size) - 1),
                   std::to_string(index), "Measure the step again."};
}

/// Checks the step record by record, tracking which values have been made and overwritten.
class StepCheck {
 public:
  explicit StepCheck(const StepProfile& profile)
      : profile_(profile), made_(profile.values.size(), 0), written_(profile.values.size(), 0) {}

  Fault run() {
    if (Fault fault = sizes()) return fault;
    for (size_t v = 0; v < profile_.values.size(); ++v) {
      if (Fault fault = value(v)) return fault;
      if (profile_.values[v].maker < 0) made_[v] = 1;
    }
    for (size_t j = 0; j < profile_.records.size(); ++j) {
      if (Fault fault = record(j)) return fault;
    }
    for (size_t v = 0; v < made_.size(); ++v) {
      if (made_[v]) continue;
      return StepFault{item("values", v) + ".maker", "a record that makes the value, or -1",
                       std::to_string(profile_.values[v].maker) + ", which does not",
                       "Measure the step again."};
    }
    for (size_t i = 0; i < profile_.slots.size(); ++i) {
      if (Fault fault = slot(i)) return fault;
    }
    for (size_t i = 0; i < profile_.nodes.size(); ++i) {
      if (Fault fault = node(i)) return fault;
    }
    if (Fault fault = check_bytes("end_bytes", profile_.end_bytes)) return fault;
    if (Fault fault = check_bytes("gap_bytes", profile_.gap_bytes)) return fault;
    if (Fault fault = check_bytes("plain_peak_bytes", profile_.plain_peak_bytes)) return fault;
    if (Fault fault = check_time("other_us", profile_.other_us)) return fault;
    if (Fault fault = totals()) return fault;
    return released_bytes();
  }

 private:
  Fault sizes() const {
    if (profile_.records.empty())
      return StepFault{"records", "1 record or more", "none", "Run a forward that computes."};
    const size_t most = std::max({profile_.records.size(), profile_.values.size(),
                                  profile_.slots.size(), profile_.nodes.size()});
    if (most <= max_count) return std::nullopt;
    return StepFault{"records", "at most a million records, values, slots and nodes",
                     std::to_string(most), "Plan a part of the step."};
  }

  /// Keeps sums far from overflow.
  Fault totals() const {
    double bytes = 0;
    for (const StepValue& value : profile_.values)
      bytes += static_cast<double>(value.bytes) + static_cast<double>(value.unpacked_bytes);
    if (bytes <= 1e16) return std::nullopt;
    return StepFault{"values", "1e16 bytes or less in all", std::to_string(bytes), "Give bytes."};
  }

  /// Released bytes must be part of end_bytes.
  Fault released_bytes() const {
    int64_t bytes = 0;
    for (size_t v = 0; v < profile_.values.size(); ++v) {
      const StepValue& value = profile_.values[v];
      if (value.released >= 0 && value.storage == static_cast<int32_t>(v)) bytes += value.bytes;
    }
    if (bytes <= profile_.end_bytes) return std::nullopt;
    return StepFault{"end_bytes", "the " + std::to_string(bytes) + " bytes released, or more",
                     std::to_string(profile_.end_bytes), "Measure the step again."};
  }

  Fault value(size_t v) const {
    const StepValue& value = profile_.values[v];
    const std::string path = item("values", v);
    const size_t records = profile_.records.size();
    if (Fault fault = check_index(path + ".maker", value.maker, -1, records)) return fault;
    if (Fault fault = check_index(path + ".storage", value.storage, 0, profile_.values.size()))
      return fault;
    if (Fault fault = check_bytes(path + ".bytes", value.bytes)) return fault;
    if (Fault fault = check_bytes(path + ".unpacked_bytes", value.unpacked_bytes)) return fault;
    if (value.unpacked_bytes > 0 && value.maker >= 0)
      return StepFault{path + ".unpacked_bytes", "0 of a value that a record makes",
                       std::to_string(value.unpacked_bytes), "Measure the step again."};
    if (Fault fault = check_index(path + ".held_until", value.held_until, 0, records + 1))
      return fault;
    if (Fault fault =
            check_index(path + ".released", value.released, -1, profile_.nodes.size() + 1))
      return fault;
    const StepValue& first = profile_.values[value.storage];
    if (first.storage != value.storage || first.maker > value.maker) {
      return StepFault{path + ".storage", "the first value of a storage",
                       std::to_string(value.storage), "Measure the step again."};
    }
    if (Fault fault = released(v)) return fault;
    if (first.maker < 0) return std::nullopt;
    if (value.bytes != first.bytes)
      return StepFault{path + ".bytes", std::to_string(first.bytes) + ", as its storage has",
                       std::to_string(value.bytes), "Measure the step again."};
    if (value.held_until == first.held_until && value.held_until >= value.maker)
      return std::nullopt;
    return StepFault{path + ".held_until",
                     "one number for all values of a storage, none of which is made later",
                     std::to_string(value.held_until), "Measure the step again."};
  }

  Fault released(size_t v) const {
    const StepValue& value = profile_.values[v];
    const StepValue& first = profile_.values[value.storage];
    const bool is_held =
        first.maker >= 0 && value.held_until == static_cast<int32_t>(profile_.records.size());
    if (value.released == first.released && (is_held || value.released < 0)) return std::nullopt;
    return StepFault{item("values", v) + ".released",
                     "one number for all values of a storage, -1 of one that the program does not "
                     "hold when the forward has ended",
                     std::to_string(value.released), "Measure the step again."};
  }

  Fault record(size_t j) {
    const StepRecord& record = profile_.records[j];
    const std::string path = item("records", j);
    if (Fault fault = numbers(record, path)) return fault;
    for (size_t i = 0; i < record.reads.size(); ++i) {
      if (Fault fault = known(item(path + ".reads", i), record.reads[i])) return fault;
    }
    for (size_t i = 0; i < record.makes.size(); ++i) {
      if (Fault fault = made(item(path + ".makes", i), record.makes[i], j)) return fault;
      if (profile_.values[record.makes[i]].storage != record.makes[i])
        return StepFault{item(path + ".makes", i), "the first value of a storage",
                         std::to_string(record.makes[i]), "Name what is written in writes."};
    }
    for (size_t i = 0; i < record.writes.size(); ++i) {
      if (Fault fault = write(item(path + ".writes", i), record.writes[i], j)) return fault;
    }
    return std::nullopt;
  }

  static Fault numbers(const StepRecord& record, const std::string& path) {
    if (Fault fault = check_time(path + ".forward_us", record.forward_us)) return fault;
    if (Fault fault = check_time(path + ".replay_us", record.replay_us)) return fault;
    if (Fault fault = check_time(path + ".backward_us", record.backward_us)) return fault;
    if (Fault fault = check_bytes(path + ".workspace_bytes", record.workspace_bytes)) return fault;
    if (Fault fault = check_bytes(path + ".forward_bytes", record.forward_bytes)) return fault;
    if (record.copied_bytes >= 0 && record.copied_bytes <= record.forward_bytes)
      return std::nullopt;
    return StepFault{path + ".copied_bytes", "0 to forward_bytes",
                     std::to_string(record.copied_bytes), "Measure the step again."};
  }

  /// Checks that the value has been made before.
  Fault known(const std::string& path, int32_t v) const {
    if (Fault fault = check_index(path, v, 0, profile_.values.size())) return fault;
    if (made_[v]) return std::nullopt;
    return StepFault{path, "a value that was made before", std::to_string(v),
                     "Measure the step again."};
  }

  Fault made(const std::string& path, int32_t v, size_t j) {
    if (Fault fault = check_index(path, v, 0, profile_.values.size())) return fault;
    if (made_[v] || profile_.values[v].maker != static_cast<int32_t>(j)) {
      return StepFault{path, "a value whose maker this record is", std::to_string(v),
                       "Measure the step again."};
    }
    made_[v] = 1;
    return std::nullopt;
  }

  Fault write(const std::string& path, const StepWrite& write, size_t j) {
    if (Fault fault = known(path + ".before", write.before)) return fault;
    if (Fault fault = made(path + ".after", write.after, j)) return fault;
    const bool again = written_[write.before];
    written_[write.before] = 1;
    if (!again && profile_.values[write.before].storage == profile_.values[write.after].storage)
      return std::nullopt;
    return StepFault{path, "the newest value of the storage that is written",
                     std::to_string(write.before), "Measure the step again."};
  }

  Fault slot(size_t i) const {
    const StepSlot& slot = profile_.slots[i];
    const std::string path = item("slots", i);
    if (Fault fault = check_index(path + ".value", slot.value, -1, profile_.values.size()))
      return fault;
    if (Fault fault = check_index(path + ".record", slot.record, 0, profile_.records.size()))
      return fault;
    if (Fault fault =
            check_index(path + ".node", slot.node, StepSlot::kDropped, profile_.nodes.size()))
      return fault;
    if (slot.value < 0 || profile_.values[slot.value].maker <= slot.record) return std::nullopt;
    return StepFault{path + ".record",
                     "a record not before " + std::to_string(profile_.values[slot.value].maker) +
                         ", which makes the value",
                     std::to_string(slot.record), "Measure the step again."};
  }

  Fault node(size_t i) const {
    const StepNode& node = profile_.nodes[i];
    const std::string path = item("nodes", i);
    if (Fault fault = check_index(path + ".record", node.record, 0, profile_.records.size()))
      return fault;
    if (Fault fault = check_time(path + ".us", node.us)) return fault;
    if (Fault fault = check_bytes(path + ".before_bytes", node.before_bytes)) return fault;
    if (Fault fault = check_bytes(path + ".inside_bytes", node.inside_bytes)) return fault;
    return check_bytes(path + ".after_bytes", node.after_bytes);
  }

  const StepProfile& profile_;
  std::vector<char> made_;
  std::vector<char> written_;
};

}  // namespace

Fault find_fault(const StepProfile& profile) {
  return StepCheck(profile).run();
}

void raise_fault(const StepFault& fault, const std::string& where) {
  throw std::invalid_argument("[memory plan] " + where + ": " + fault.path + ": expected " +
                              fault.expected + ", got " + fault.got + ". " + fault.advice);
}

}  // namespace remat::detail
