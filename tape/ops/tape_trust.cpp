// SPDX-License-Identifier: BSD-3-Clause

// Process-wide table of the functions whose tapes have been compared.
#include <remat/tape/tape_trust.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace remat {
namespace {

constexpr size_t kMaxKnown = 16384;

constexpr size_t kMaxTrusted = 16;  // Op sequences per name and function of regions.

/// Leaked: regions may outlive static objects.
auto& table() {
  static auto& table = *new std::pair<std::mutex, std::unordered_map<uint64_t, TapeTrust::Advice>>;
  return table;
}

/// Calls `use` with the entry of the key, under the lock.
template <class Use>
auto with_known(uint64_t key, Use&& use) {
  auto& [mutex, all] = table();
  const std::lock_guard<std::mutex> lock(mutex);
  // Empty a full table, because region names may contain counters. Entries are learned again.
  if (all.size() >= kMaxKnown && !all.contains(key)) all.clear();
  return use(all[key]);
}

}  // namespace

TapeTrust TapeTrust::of(const std::string& region_name, const RegionBody& body) {
  return TapeTrust(std::hash<std::string>()(region_name) * 31 + body.identity());
}

TapeTrust::Advice TapeTrust::advice() const {
  return with_known(key_, [](const Advice& known) { return known; });
}

bool TapeTrust::refuse() const {
  return with_known(key_, [](Advice& known) { return !std::exchange(known.refused, true); });
}

void TapeTrust::trust(const OpHashes& ops) const {
  auto added = std::make_shared<const OpHashes>(ops);
  with_known(key_, [&](Advice& known) {
    // Copied, since running regions share the old list.
    TrustedOps::All all = known.trusted.all() ? *known.trusted.all() : TrustedOps::All();
    // The list has these ops already if several regions were recorded before one was compared.
    if (std::any_of(all.begin(), all.end(),
                    [&](const auto& known_ops) { return *known_ops == *added; }))
      return;
    if (all.size() == kMaxTrusted) all.erase(all.begin());
    all.push_back(std::move(added));
    known.trusted = TrustedOps(std::make_shared<const TrustedOps::All>(std::move(all)));
  });
}

}  // namespace remat
