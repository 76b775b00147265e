// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a step profile or of cuts; digests profiles, and simulates valid cuts.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/planner/digest.h>

#include "step_check.h"
#include "step_graph.h"
#include "step_simulator.h"

namespace remat::detail {

namespace {

constexpr int64_t max_bytes = int64_t{1} << 50;
constexpr double max_time_us = 1e9;
constexpr size_t max_count = 1000000;

[[noreturn]] void refuse(const std::string& path, const std::string& expected, int64_t got) {
  throw Fault{path, expected, std::to_string(got), "Measure the step again."};
}

void check_bytes(const std::string& path, int64_t bytes) {
  if (bytes >= 0 && bytes <= max_bytes) return;
  throw Fault{path, "0 to 2^50 bytes", std::to_string(bytes), "Give bytes."};
}

void check_time(const std::string& path, double us) {
  if (us >= 0 && us <= max_time_us) return;  // false for NaN
  throw Fault{path, "0 to 1e9 us", std::to_string(us), "Give microseconds."};
}

void check_index(const std::string& path, int64_t index, int64_t from, size_t size) {
  if (index >= from && index < static_cast<int64_t>(size)) return;
  refuse(path, std::to_string(from) + " to " + std::to_string(int64_t(size) - 1), index);
}

/// Checks the step record by record, tracking which values have been made and overwritten.
class StepCheck {
 public:
  explicit StepCheck(const StepProfile& profile)
      : profile_(profile), made_(profile.values.size(), 0), written_(profile.values.size(), 0) {}

  void run() {
    sizes();
    for (size_t v = 0; v < profile_.values.size(); ++v) {
      value(v);
      if (profile_.values[v].maker < 0) made_[v] = 1;
    }
    for (size_t j = 0; j < profile_.records.size(); ++j) record(j);
    for (size_t v = 0; v < made_.size(); ++v) {
      if (made_[v]) continue;
      throw Fault{indexed("values", v) + ".maker", "a record that makes the value, or -1",
                  std::to_string(profile_.values[v].maker) + ", which does not",
                  "Measure the step again."};
    }
    for (size_t i = 0; i < profile_.slots.size(); ++i) slot(i);
    for (size_t i = 0; i < profile_.nodes.size(); ++i) node(i);
    check_bytes("end_bytes", profile_.end_bytes);
    check_bytes("gap_bytes", profile_.gap_bytes);
    check_bytes("plain_peak_bytes", profile_.plain_peak_bytes);
    check_time("other_us", profile_.other_us);
    totals();
    released_bytes();
  }

 private:
  void sizes() const {
    if (profile_.records.empty())
      throw Fault{"records", "1 record or more", "none", "Run a forward that computes."};
    const size_t most = std::max({profile_.records.size(), profile_.values.size(),
                                  profile_.slots.size(), profile_.nodes.size()});
    if (most <= max_count) return;
    throw Fault{"records", "at most a million records, values, slots and nodes",
                std::to_string(most), "Plan a part of the step."};
  }

  /// Checks that sums stay far from overflow.
  void totals() const {
    double bytes = 0;
    for (const StepValue& value : profile_.values)
      bytes += static_cast<double>(value.bytes) + static_cast<double>(value.unpacked_bytes);
    if (bytes <= 1e16) return;
    throw Fault{"values", "1e16 bytes or less in all", std::to_string(bytes), "Give bytes."};
  }

  /// Checks that released bytes are part of end_bytes.
  void released_bytes() const {
    int64_t bytes = 0;
    for (size_t v = 0; v < profile_.values.size(); ++v) {
      const StepValue& value = profile_.values[v];
      if (value.released >= 0 && value.storage == static_cast<int32_t>(v)) bytes += value.bytes;
    }
    if (bytes <= profile_.end_bytes) return;
    refuse("end_bytes", "the " + std::to_string(bytes) + " bytes released, or more",
           profile_.end_bytes);
  }

  void value(size_t v) const {
    const StepValue& value = profile_.values[v];
    const std::string path = indexed("values", v);
    const size_t records = profile_.records.size();
    check_index(path + ".maker", value.maker, -1, records);
    check_index(path + ".storage", value.storage, 0, profile_.values.size());
    check_bytes(path + ".bytes", value.bytes);
    check_bytes(path + ".unpacked_bytes", value.unpacked_bytes);
    if (value.unpacked_bytes > 0 && value.maker >= 0)
      refuse(path + ".unpacked_bytes", "0 of a value that a record makes", value.unpacked_bytes);
    check_index(path + ".held_until", value.held_until, 0, records + 1);
    check_index(path + ".released", value.released, -1, profile_.nodes.size() + 1);
    const StepValue& first = profile_.values[value.storage];
    if (first.storage != value.storage || first.maker > value.maker) {
      refuse(path + ".storage", "the first value of a storage", value.storage);
    }
    released(v);
    if (first.maker < 0) return;
    if (value.bytes != first.bytes)
      refuse(path + ".bytes", std::to_string(first.bytes) + ", as its storage has", value.bytes);
    if (value.held_until == first.held_until && value.held_until >= value.maker) return;
    refuse(path + ".held_until",
           "one number for all values of a storage, none of which is made later", value.held_until);
  }

  void released(size_t v) const {
    const StepValue& value = profile_.values[v];
    const StepValue& first = profile_.values[value.storage];
    const bool is_held =
        first.maker >= 0 && value.held_until == static_cast<int32_t>(profile_.records.size());
    if (value.released == first.released && (is_held || value.released < 0)) return;
    refuse(indexed("values", v) + ".released",
           "one number for all values of a storage, -1 of one that the program does not "
           "hold when the forward has ended",
           value.released);
  }

  void record(size_t j) {
    const StepRecord& record = profile_.records[j];
    const std::string path = indexed("records", j);
    numbers(record, path);
    for (size_t i = 0; i < record.reads.size(); ++i)
      known(indexed(path + ".reads", i), record.reads[i]);
    for (size_t i = 0; i < record.makes.size(); ++i) {
      made(indexed(path + ".makes", i), record.makes[i], j);
      if (profile_.values[record.makes[i]].storage != record.makes[i])
        throw Fault{indexed(path + ".makes", i), "the first value of a storage",
                    std::to_string(record.makes[i]), "Name what is written in writes."};
    }
    for (size_t i = 0; i < record.writes.size(); ++i)
      write(indexed(path + ".writes", i), record.writes[i], j);
  }

  static void numbers(const StepRecord& record, const std::string& path) {
    check_time(path + ".forward_us", record.forward_us);
    check_time(path + ".replay_us", record.replay_us);
    check_time(path + ".backward_us", record.backward_us);
    check_bytes(path + ".workspace_bytes", record.workspace_bytes);
    check_bytes(path + ".forward_bytes", record.forward_bytes);
    if (record.copied_bytes >= 0 && record.copied_bytes <= record.forward_bytes) return;
    refuse(path + ".copied_bytes", "0 to forward_bytes", record.copied_bytes);
  }

  /// Checks that the value is from outside or an earlier record has made it.
  void known(const std::string& path, int32_t v) const {
    check_index(path, v, 0, profile_.values.size());
    if (made_[v]) return;
    refuse(path, "a value that was made before", v);
  }

  void made(const std::string& path, int32_t v, size_t j) {
    check_index(path, v, 0, profile_.values.size());
    if (made_[v] || profile_.values[v].maker != static_cast<int32_t>(j)) {
      refuse(path, "a value whose maker this record is", v);
    }
    made_[v] = 1;
  }

  void write(const std::string& path, const StepWrite& write, size_t j) {
    known(path + ".before", write.before);
    made(path + ".after", write.after, j);
    const bool again = written_[write.before];
    written_[write.before] = 1;
    if (!again && profile_.values[write.before].storage == profile_.values[write.after].storage)
      return;
    refuse(path, "the newest value of the storage that is written", write.before);
  }

  void slot(size_t i) const {
    const StepSlot& slot = profile_.slots[i];
    const std::string path = indexed("slots", i);
    check_index(path + ".value", slot.value, -1, profile_.values.size());
    check_index(path + ".record", slot.record, 0, profile_.records.size());
    check_index(path + ".node", slot.node, StepSlot::kDropped, profile_.nodes.size());
    if (slot.value < 0 || profile_.values[slot.value].maker <= slot.record) return;
    refuse(path + ".record",
           "a record not before " + std::to_string(profile_.values[slot.value].maker) +
               ", which makes the value",
           slot.record);
  }

  void node(size_t i) const {
    const StepNode& node = profile_.nodes[i];
    const std::string path = indexed("nodes", i);
    check_index(path + ".record", node.record, 0, profile_.records.size());
    check_time(path + ".us", node.us);
    check_bytes(path + ".before_bytes", node.before_bytes);
    check_bytes(path + ".inside_bytes", node.inside_bytes);
    check_bytes(path + ".after_bytes", node.after_bytes);
  }

  const StepProfile& profile_;
  std::vector<char> made_;
  std::vector<char> written_;
};

using Group = std::pair<int32_t, int32_t>;

constexpr const char* plan_again = "Plan for this step.";

std::string group_text(const Group& group) {
  return "[" + std::to_string(group.first) + ", " + std::to_string(group.second) + "]";
}

void check_positions(const StepCuts& cuts, int32_t records) {
  int32_t last = 0;
  for (size_t i = 0; i < cuts.positions.size(); ++i) {
    const int32_t position = cuts.positions[i];
    if (position > last && position < records) {
      last = position;
      continue;
    }
    throw Fault{indexed("positions", i),
                "a record after " + std::to_string(last) + " and before " + std::to_string(records),
                std::to_string(position), plan_again};
  }
}

bool apart_or_nested(const Group& a, const Group& b) {
  const bool apart = a.second <= b.first || b.second <= a.first;
  const auto inside = [](const Group& x, const Group& y) {
    return y.first <= x.first && x.second <= y.second && x != y;
  };
  return apart || inside(a, b) || inside(b, a);
}

void check_groups(const StepCuts& cuts) {
  const auto segments = static_cast<int32_t>(cuts.positions.size()) + 1;
  for (size_t i = 0; i < cuts.groups.size(); ++i) {
    const Group& group = cuts.groups[i];
    if (group.first < 0 || group.second > segments || group.second - group.first < 2) {
      throw Fault{indexed("groups", i), "two or more of " + std::to_string(segments) + " segments",
                  group_text(group), plan_again};
    }
    for (size_t k = 0; k < i; ++k) {
      if (apart_or_nested(group, cuts.groups[k])) continue;
      throw Fault{indexed("groups", i),
                  "a group inside of " + group_text(cuts.groups[k]) + ", around it or apart",
                  group_text(group), plan_again};
    }
  }
}

}  // namespace

void check_profile(const StepProfile& profile) {
  StepCheck(profile).run();
}

void check_cuts(const StepCuts& cuts, const StepProfile& profile) {
  check_positions(cuts, static_cast<int32_t>(profile.records.size()));
  check_groups(cuts);
  for (size_t i = 0; i < cuts.keep.size(); ++i) {
    const KeptResult& kept = cuts.keep[i];
    if (kept.record >= 0 && kept.record < static_cast<int32_t>(profile.records.size())) {
      const StepRecord& record = profile.records[kept.record];
      const size_t results = record.makes.size() + record.writes.size();
      if (kept.result >= 0 && static_cast<size_t>(kept.result) < results) continue;
    }
    throw Fault{indexed("keep", i), "a record and one of its results",
                "record " + std::to_string(kept.record) + ", result " + std::to_string(kept.result),
                plan_again};
  }
}

}  // namespace remat::detail

namespace remat {

void StepProfile::validate(const std::string& source) const {
  detail::raise_faults("memory plan", source, nullptr, [&] { detail::check_profile(*this); });
}

void StepCuts::validate(const StepProfile& profile, const std::string& source) const {
  detail::raise_faults("memory plan", source, nullptr, [&] { detail::check_cuts(*this, profile); });
}

StepSimulation simulate_step(const StepProfile& profile, const StepCuts& cuts,
                             const OffloadTerms& offload) {
  profile.validate();
  cuts.validate(profile);
  const detail::StepGraph graph(profile);
  std::vector<char> keep = detail::kept_flags(profile, cuts);
  detail::StepSimulator simulator(graph, cuts.positions, cuts.groups, offload);
  return simulator.run(keep, detail::MissingValues::kRefuse);
}

std::string StepProfile::caution() const {
  if (device.empty()) return "";
  std::string text = "times are of the thread that launches, not of " + device +
                     ": peaks hold, predicted overheads do not";
  if (!other_devices.empty())
    text += "; bytes are memory of " + device + " alone, without that of " + other_devices;
  return text;
}

std::string StepProfile::digest() const {
  detail::Digest all;
  for (const StepRecord& record : records)
    all.add(static_cast<int64_t>(detail::record_digest(*this, record)));
  for (const StepSlot& slot : slots) {
    all.add(slot.value);
    all.add(slot.record);
    if (slot.is_dropped()) all.add(slot.node);
  }
  return all.hex();
}

}  // namespace remat
