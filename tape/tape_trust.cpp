// SPDX-License-Identifier: BSD-3-Clause

// One table for the process.
#include <remat/tape/tape_trust.h>

#include <functional>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace remat {
namespace {

constexpr size_t kMostKnown = 16384;

struct Known {
  bool refused = false;
  bool wants_hashes = true;
  std::unordered_set<uint64_t> trusted;
};

struct Table {
  std::mutex mutex;
  std::unordered_map<uint64_t, Known> all;
};

/// Leaked: regions may outlive static objects.
Table& table() {
  static Table& table = *new Table;
  return table;
}

/// Calls `use` with what is known of the key, under the lock.
template <class Use>
auto with_known(uint64_t key, Use&& use) {
  auto& [mutex, all] = table();
  const std::lock_guard<std::mutex> lock(mutex);
  // Names made of a counter must not fill the memory. What is forgotten is found out again.
  if (all.size() >= kMostKnown && !all.contains(key)) all.clear();
  return use(all[key]);
}

}  // namespace

TapeTrust TapeTrust::of(const std::string& region_name, const RegionBody& body) {
  return TapeTrust(std::hash<std::string>()(region_name) * 31 + body.identity());
}

TapeTrust::Advice TapeTrust::advice() const {
  return with_known(key_, [](const Known& known) {
    return Advice{.refused = known.refused, .wants_hashes = known.wants_hashes};
  });
}

bool TapeTrust::refuse() const {
  return with_known(key_, [](Known& known) { return !std::exchange(known.refused, true); });
}

void TapeTrust::note_ops(uint64_t ops) const {
  with_known(key_, [&](Known& known) { known.wants_hashes = !known.trusted.contains(ops); });
}

void TapeTrust::trust_ops(uint64_t ops) const {
  with_known(key_, [&](Known& known) {
    known.trusted.insert(ops);
    known.wants_hashes = false;
  });
}

}  // namespace remat
