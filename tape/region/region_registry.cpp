// SPDX-License-Identifier: BSD-3-Clause

// A table of regions by id, and the regions that each thread has closed.
#include "region_registry.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace remat {
namespace {

/// All regions, by id. Leaked: regions may die after static objects.
class Registry {
 public:
  static Registry& get() {
    static Registry& registry = *new Registry;
    return registry;
  }

  uint64_t next_id() { return ++last_id_; }

  void add(Region& region) {
    const std::lock_guard<std::mutex> lock(mutex_);
    regions_.emplace(region.id(), &region);
  }

  void remove(uint64_t id) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    regions_.erase(id);
  }

  std::vector<std::shared_ptr<const Region>> live() const {
    std::vector<std::shared_ptr<const Region>> live;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, region] : regions_) {
      // Null for a region that is being destroyed.
      if (auto shared = region->weak_from_this().lock()) live.push_back(std::move(shared));
    }
    return live;
  }

  std::shared_ptr<const Region> find(uint64_t id) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = regions_.find(id);
    return entry == regions_.end() ? nullptr : entry->second->weak_from_this().lock();
  }

  uint64_t last_id() const { return last_id_; }

  /// The oldest region with a higher id; null if there is none.
  std::shared_ptr<Region> find_after(uint64_t id) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto entry = regions_.upper_bound(id); entry != regions_.end(); ++entry) {
      if (auto shared = entry->second->weak_from_this().lock()) return shared;
    }
    return nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<uint64_t> last_id_{0};
  std::map<uint64_t, Region*> regions_;
};

thread_local std::vector<uint64_t> closed_here;  // Ids.

}  // namespace

uint64_t RegionRegistry::next_id() {
  return Registry::get().next_id();
}

void RegionRegistry::add(Region& region) {
  Registry::get().add(region);
}

void RegionRegistry::remove(uint64_t id) noexcept {
  Registry::get().remove(id);
}

void RegionRegistry::note_closed(uint64_t id) {
  constexpr size_t kFew = 256;
  if (closed_here.capacity() == 0) closed_here.reserve(kFew);
  if (closed_here.size() == closed_here.capacity())  // Before it would grow.
    std::erase_if(closed_here, [](uint64_t closed) { return !find_region(closed); });
  closed_here.push_back(id);
}

std::vector<std::shared_ptr<const Region>> live_regions() {
  return Registry::get().live();
}

std::vector<uint64_t> take_closed_here() {
  return closed_here.empty() ? std::vector<uint64_t>() : std::exchange(closed_here, {});
}

std::shared_ptr<const Region> find_region(uint64_t id) {
  return Registry::get().find(id);
}

uint64_t youngest_region() {
  return Registry::get().last_id();
}

void end_regions_of_replay(uint64_t replay_id, uint64_t after) noexcept {
  if (youngest_region() == after) return;
  while (const std::shared_ptr<Region> region = Registry::get().find_after(after)) {
    after = region->id();
    if (region->made_in_replay() == replay_id) region->end_with_replay();
  }
}

}  // namespace remat
