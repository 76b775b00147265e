// SPDX-License-Identifier: BSD-3-Clause

// A slow and literal simulation: sets of dependencies, counted holders, blocks of memory with
// owners.
#include "planner/step/step_oracle.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

namespace remat::test {

namespace {

struct Lacking {};

/// Memory that is alive as long as somebody holds it.
struct Bytes {
  Bytes(int64_t* sum_, int64_t size_) : sum(sum_), size(size_) { *sum += size; }
  ~Bytes() { *sum -= size; }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  int64_t* sum;
  int64_t size;
};
using Memory = std::shared_ptr<Bytes>;

struct Unit {
  int first, end;  // Segments
};

/// Holds a value for backward: as a slot of a segment, or in a group for the units inside it.
struct Place {
  int unit = 0;
  int value = 0;
  bool alive = true;
  Memory memory;
  std::set<std::pair<int, int>> depends;  // (home, value) of the kept values it is made from
  Memory shared{};                        // memory of the newest value of its storage
};

class Oracle {
 public:
  Oracle(const StepProfile& profile, const StepCuts& cuts, bool offload) : p_(profile) {
    out_.runs.assign(p_.records.size(), 0);
    int begin = 0;
    for (size_t s = 0; s <= cuts.positions.size(); ++s) {
      const int end = s < cuts.positions.size() ? cuts.positions[s] : records();
      begins_.push_back(begin);
      ends_.push_back(end);
      units_.push_back({static_cast<int>(s), static_cast<int>(s) + 1});
      begin = end;
    }
    segments_ = static_cast<int>(units_.size());
    for (const auto& [first, end] : cuts.groups) units_.push_back({first, end});
    for (const KeptResult& kept : cuts.keep) {
      const StepRecord& record = p_.records[kept.record];
      const int makes = static_cast<int>(record.makes.size());
      const int v = kept.result < makes ? record.makes[kept.result]
                                        : record.writes[kept.result - makes].after;
      keep_.insert(v);
      if (offload && kept.policy == Policy::kOffload) moved_.insert(v);
    }
  }

  OracleResult run() {
    try {
      make_places();
      forward();
      backward();
    } catch (const Lacking&) {
      out_.possible = false;
    }
    places_.clear();
    programs_.clear();
    return out_;
  }

 private:
  int records() const { return static_cast<int>(p_.records.size()); }
  int segment(int record) const {
    for (int s = 0; s < segments_; ++s) {
      if (begins_[s] <= record && record < ends_[s]) return s;
    }
    throw std::logic_error("no segment");
  }
  bool holds(int unit, int segment) const {
    return unit < 0 || (units_[unit].first <= segment && segment < units_[unit].end);
  }
  bool around(int outer, int inner) const {
    if (outer < 0) return true;
    return outer != inner && holds(outer, units_[inner].first) &&
           holds(outer, units_[inner].end - 1);
  }
  /// Returns the smallest group that has both segments, or -1.
  int common(int s, int t) const {
    int best = -1;
    for (int g = segments_; g < static_cast<int>(units_.size()); ++g) {
      if (!holds(g, s) || !holds(g, t)) continue;
      if (best < 0 || around(best, g)) best = g;
    }
    return best;
  }
  int home(int v) const {
    const int s = segment(p_.values[v].maker);
    int best = common(s, s);
    const auto widen = [&](int record) {
      if (segment(record) == s) return;
      const int shared = common(s, segment(record));
      if (best >= 0 && around(shared, best)) best = shared;
    };
    for (int j = 0; j < records(); ++j) {
      const std::vector<int32_t>& reads = p_.records[j].reads;
      if (p_.records[j].reads_data && std::count(reads.begin(), reads.end(), v) > 0) widen(j);
    }
    for (const StepSlot& slot : p_.slots) {
      if (slot.value == v) widen(slot.record);
    }
    return best;
  }
  std::vector<int> results(int j) const {
    std::vector<int> all(p_.records[j].makes.begin(), p_.records[j].makes.end());
    for (const StepWrite& write : p_.records[j].writes) all.push_back(write.after);
    return all;
  }
  bool is_given(int v, int unit) const { return keep_.count(v) > 0 && around(home(v), unit); }

  /// Returns the records that `unit` runs to compute `wanted`, and the kept values it starts from.
  std::pair<std::vector<int>, std::set<int>> analyse(int unit, const std::set<int>& wanted) const {
    const int begin = begins_[units_[unit].first];
    const int end = ends_[units_[unit].end - 1];
    std::set<int> makes;
    std::set<int> given;
    std::vector<int> runs;
    const auto ask = [&](int v) {
      const int maker = p_.values[v].maker;
      if (maker < 0) {
        read_outside_.insert(v);
        return;
      }
      if (is_given(v, unit)) {
        given.insert(v);
      } else if (maker < begin || maker >= end) {
        throw Lacking();
      } else {
        makes.insert(v);
      }
    };
    for (const int v : wanted) ask(v);
    for (int j = end - 1; j >= begin; --j) {
      const std::vector<int> made = results(j);
      if (std::none_of(made.begin(), made.end(), [&](int v) { return makes.count(v) > 0; }))
        continue;
      runs.insert(runs.begin(), j);
      if (!p_.records[j].reads_data) continue;
      for (const int v : p_.records[j].reads) ask(v);
    }
    return {runs, given};
  }

  std::map<int, std::set<std::pair<int, int>>> dependencies(int unit, const std::set<int>& wanted) {
    const auto [runs, given] = analyse(unit, wanted);
    std::map<int, std::set<std::pair<int, int>>> of;
    for (const int v : given) of[v] = {{home(v), v}};
    for (const int j : runs) {
      std::set<std::pair<int, int>> all;
      if (p_.records[j].reads_data) {
        for (const int v : p_.records[j].reads) all.insert(of[v].begin(), of[v].end());
      }
      for (const int v : results(j)) {
        if (given.count(v) == 0) of[v] = all;
      }
    }
    return of;
  }

  /// Makes the places for slots of segments, then those of groups, inner groups first.
  void make_places() {
    for (const StepSlot& slot : p_.slots) {
      if (slot.value < 0 || slot.is_dropped() || p_.values[slot.value].maker < 0) {
        places_.push_back({-1, -1, false, nullptr, {}});
      } else {
        places_.push_back({segment(slot.record), slot.value, true, nullptr, {}});
      }
    }
    std::vector<int> order;
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) order.push_back(u);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return units_[a].end - units_[a].first < units_[b].end - units_[b].first;
    });
    for (const int u : order) {
      for (const int v : asked_of_[u]) places_.push_back({u, v, true, nullptr, {}});
      std::set<int> wanted;
      for (const Place& place : places_) {
        if (place.unit == u && place.alive) wanted.insert(place.value);
      }
      auto depends = dependencies(u, wanted);
      for (Place& place : places_) {
        if (place.unit == u && place.alive) place.depends = depends[place.value];
      }
      for (const int v : analyse(u, wanted).second) {
        if (home(v) >= 0) asked_of_[home(v)].insert(v);
      }
    }
  }

  bool depended_on(int home, int v) const {
    return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
      return place.alive && place.depends.count({home, v}) > 0;
    });
  }

  /// True if the forward keeps the value with OFFLOAD, no other value has its storage, and the
  /// program does not hold it at the end.
  bool may_leave(int v) const {
    const auto of_storage = std::count_if(p_.values.begin(), p_.values.end(), [&](const auto& of) {
      return of.storage == p_.values[v].storage;
    });
    return moved_.count(v) > 0 && of_storage == 1 && p_.values[v].bytes > 0 && home(v) < 0 &&
           p_.values[v].held_until < records();
  }

  /// If `record` makes a value that is put, values put earlier that the program has released leave.
  void leave(int record, const std::set<int>& wanted, std::map<int, Memory>& in_storage) {
    const auto is_put = [&](int v) { return p_.values[v].maker == record && may_leave(v); };
    if (std::none_of(wanted.begin(), wanted.end(), is_put)) return;
    for (const int v : wanted) {
      if (!may_leave(v) || p_.values[v].maker >= record || p_.values[v].held_until >= record)
        continue;
      if (!away_.insert(v).second) continue;
      in_storage.erase(p_.values[v].storage);
      out_.offloaded_bytes += p_.values[v].bytes;
    }
  }

  void forward() {
    std::map<int, Memory> in_storage;
    int64_t more = 0;
    std::set<int> wanted;
    for (const int v : keep_) {
      if (home(v) < 0 && depended_on(-1, v)) wanted.insert(v);
    }
    for (int j = 0; j < records(); ++j) {
      for (const StepWrite& write : p_.records[j].writes) {
        const bool outside = p_.values[p_.values[write.after].storage].maker < 0;
        if (outside && wanted.count(write.after) > 0)
          root_[write.after] = std::make_shared<Bytes>(&more, p_.values[write.after].bytes);
        if (outside) continue;
        if (wanted.count(write.before) > 0)
          root_[write.before] = std::make_shared<Bytes>(&more, p_.values[write.before].bytes);
      }
      for (const int v : wanted) {
        if (root_.count(v) == 0 && away_.count(v) == 0 && p_.values[v].held_until < j) {
          const int storage = p_.values[v].storage;
          if (in_storage.count(storage) == 0)
            in_storage[storage] = std::make_shared<Bytes>(&more, p_.values[v].bytes);
        }
      }
      out_.forward_peak_bytes =
          std::max(out_.forward_peak_bytes, p_.records[j].forward_bytes + more);
      leave(j, wanted, in_storage);
    }
    int64_t programs_bytes = 0;
    for (int s = 0; s < static_cast<int>(p_.values.size()); ++s) {
      const StepValue& first = p_.values[s];
      if (first.storage == s && first.maker >= 0 && first.held_until >= records())
        programs_[s] = std::make_shared<Bytes>(&programs_bytes, first.bytes);
    }
    for (const int v : wanted) {
      if (root_.count(v) > 0 || away_.count(v) > 0) continue;
      const int storage = p_.values[v].storage;
      if (programs_.count(storage) > 0) {
        root_[v] = programs_[storage];
        continue;
      }
      if (in_storage.count(storage) == 0)
        in_storage[storage] = std::make_shared<Bytes>(&more, p_.values[v].bytes);
      root_[v] = in_storage[storage];
    }
    in_storage.clear();
    share_memory();
    for (const StepRecord& record : p_.records) {
      for (const StepWrite& write : record.writes) {
        if (p_.values[write.before].maker < 0 && read_outside_.count(write.before) > 0)
          old_.push_back(std::make_shared<Bytes>(&more, p_.values[write.before].bytes));
      }
    }
    out_.kept_bytes = more;
    out_.peak_bytes = out_.forward_peak_bytes;
    now_ = p_.end_bytes + more;
    for (auto& [s, memory] : programs_) memory->sum = &now_;
    for (auto& [v, memory] : root_) {  // now_ counts it from now on.
      memory->sum = &now_;
    }
    for (Memory& memory : old_) memory->sum = &now_;
  }

  /// Other kept or given values of a storage also hold the memory of its newest kept value.
  void share_memory() {
    for (const auto& [v, memory] : root_) {
      const int storage = p_.values[v].storage;
      const bool newest =
          std::none_of(p_.records.begin(), p_.records.end(), [&](const auto& record) {
            return std::any_of(record.writes.begin(), record.writes.end(),
                               [&](const StepWrite& write) { return write.before == v; });
          });
      if (!newest || p_.values[storage].maker < 0 || programs_.count(storage) > 0) continue;
      for (const auto& [other, copy] : root_) {
        if (other != v && p_.values[other].storage == storage) shared_[other] = memory;
      }
      for (Place& place : places_) {
        const bool is_groups = place.alive && place.unit >= segments_;
        if (is_groups && p_.values[place.value].storage == storage) place.shared = memory;
      }
    }
  }

  void reach(int64_t extra) { out_.peak_bytes = std::max(out_.peak_bytes, now_ + extra); }

  Memory given_memory(int v) {
    if (home(v) < 0) return root_.at(v);
    for (const Place& place : places_) {
      if (place.unit == home(v) && place.value == v && place.alive) return place.memory;
    }
    throw std::logic_error("a group's slot is dead");
  }

  /// Returns the memory into which `v` is fetched, shared by all that hold it at the time.
  Memory fetched(int v) {
    Memory memory = fetched_[v].lock();
    if (!memory) memory = std::make_shared<Bytes>(&now_, p_.values[v].bytes);
    fetched_[v] = memory;
    return memory;
  }

  void replay(int unit, int64_t extra) {
    if (!done_.insert(unit).second) return;
    std::set<int> wanted;
    for (const Place& place : places_) {
      if (place.unit == unit && place.alive) wanted.insert(place.value);
    }
    const auto [runs, given] = analyse(unit, wanted);
    std::vector<int> groups;
    for (const int v : given) {
      if (home(v) >= 0) groups.push_back(home(v));
    }
    std::stable_sort(groups.begin(), groups.end(), [&](int a, int b) { return around(a, b); });
    for (const int g : groups) replay(g, extra);
    ++out_.replays;
    std::map<int, Memory> made;
    const auto read_after = [&](int v, size_t i) {
      for (size_t k = i + 1; k < runs.size(); ++k) {
        const StepRecord& record = p_.records[runs[k]];
        if (record.reads_data && std::count(record.reads.begin(), record.reads.end(), v) > 0)
          return true;
      }
      return false;
    };
    for (const int j : runs) {
      for (const int v : p_.records[j].reads) {
        const int64_t bytes = p_.values[v].unpacked_bytes;
        if (p_.records[j].reads_data && bytes > 0 && made.count(v) == 0)
          made[v] = std::make_shared<Bytes>(&now_, bytes);
      }
    }
    for (const int v : given) {
      if (away_.count(v) > 0) made[v] = fetched(v);
    }
    reach(extra);
    for (size_t i = 0; i < runs.size(); ++i) {
      const int j = runs[i];
      const StepRecord& record = p_.records[j];
      ++out_.runs[j];
      out_.rerun_us += record.replay_us;
      for (const StepWrite& write : record.writes) {
        const bool needed = wanted.count(write.before) > 0 || read_after(write.before, i);
        if (made.count(write.before) > 0 && !needed) {
          made[write.after] = made[write.before];
          made.erase(write.before);
        } else {
          made[write.after] = std::make_shared<Bytes>(&now_, p_.values[write.after].bytes);
        }
      }
      for (const int v : record.makes) made[v] = std::make_shared<Bytes>(&now_, p_.values[v].bytes);
      reach(extra + record.workspace_bytes);
      for (auto at = made.begin(); at != made.end();) {
        const int v = at->first;
        const bool is_resident = given.count(v) > 0 && away_.count(v) == 0;
        const bool needed = !is_resident && (wanted.count(v) > 0 || read_after(v, i));
        at = needed ? std::next(at) : made.erase(at);
      }
    }
    for (Place& place : places_) {
      if (place.unit != unit || !place.alive) continue;
      place.memory = given.count(place.value) > 0 && away_.count(place.value) == 0
                         ? given_memory(place.value)
                         : made.at(place.value);
    }
  }

  void die(Place& place) {
    place.alive = false;
    place.memory = nullptr;
    place.shared = nullptr;
    const auto depends = std::move(place.depends);
    place.depends.clear();
    for (const auto& [at, v] : depends) {
      if (depended_on(at, v)) continue;
      if (at < 0) {
        root_.erase(v);
        shared_.erase(v);
        continue;
      }
      for (Place& slot : places_) {
        if (slot.unit == at && slot.value == v && slot.alive) die(slot);
      }
    }
  }

  /// Drops the storages that the program releases at this node; kept values may still hold them.
  void let_go(int nodes_begun) {
    for (auto at = programs_.begin(); at != programs_.end();) {
      const bool goes = p_.values[at->first].released == nodes_begun;
      at = goes ? programs_.erase(at) : std::next(at);
    }
  }

  void backward() {
    reach(p_.gap_bytes);
    let_go(0);
    for (size_t q = 0; q < p_.nodes.size(); ++q) {
      for (size_t i = 0; i < p_.slots.size(); ++i) {
        if (p_.slots[i].node == static_cast<int>(q))
          replay(segment(p_.slots[i].record), p_.nodes[q].before_bytes);
      }
      reach(p_.nodes[q].inside_bytes);
      for (size_t i = 0; i < p_.slots.size(); ++i) {
        if (p_.slots[i].node == static_cast<int>(q) && places_[i].alive) die(places_[i]);
      }
      let_go(static_cast<int>(q) + 1);
      reach(p_.nodes[q].after_bytes);
    }
    root_.clear();
    shared_.clear();
  }

  const StepProfile& p_;
  OracleResult out_;
  std::vector<Unit> units_;
  std::vector<int> begins_, ends_;
  int segments_ = 0;
  std::set<int> keep_;
  std::set<int> moved_;  // Kept values with OFFLOAD
  std::set<int> away_;   // Values of moved_ that have left
  std::map<int, std::weak_ptr<Bytes>> fetched_;
  std::map<int, std::set<int>> asked_of_;
  int64_t now_ = 0;
  std::vector<Place> places_;
  std::map<int, Memory> root_;
  std::map<int, Memory> shared_;        // Memory of the newest value of its storage, by kept value
  std::map<int, Memory> programs_;      // Storages that the program holds at the forward's end
  mutable std::set<int> read_outside_;  // Values from outside that replays read
  std::vector<Memory> old_;             // Old bytes of overwritten outside values, until the end
  std::set<int> done_;
};

}  // namespace

OracleResult oracle(const StepProfile& profile, const StepCuts& cuts, bool offload) {
  return Oracle(profile, cuts, offload).run();
}

}  // namespace remat::test
