// SPDX-License-Identifier: BSD-3-Clause

// Patterns of named calls, and regions that give each of their blocks its own name.
#include "matrix/patterns.h"

#include "matrix/copying_hooks.h"

namespace remat::matrix {
namespace {

using Kind = std::optional<CallKind>;

constexpr CallKind kSave{Policy::kSave};
constexpr CallKind kRecompute{Policy::kRecompute};
constexpr CallKind kOffload{Policy::kOffload};
constexpr CallKind kSaveInAll{Policy::kSave, Keep::kAllRegions};
constexpr CallKind kOffloadInAll{Policy::kOffload, Keep::kAllRegions};

Kind all_save(size_t /*part*/) {
  return kSave;
}

Kind save_and_recompute(size_t part) {
  return part % 2 == 0 ? kSave : kRecompute;
}

Kind save_and_bare(size_t part) {
  return part % 2 == 0 ? Kind(kSave) : std::nullopt;
}

Kind bare_and_save(size_t part) {
  return part % 2 == 1 ? Kind(kSave) : std::nullopt;
}

Kind chains_of_two(size_t part) {
  return part % 3 != 2 ? Kind(kSave) : std::nullopt;
}

Kind all_regions(size_t /*part*/) {
  return kSaveInAll;
}

Kind all_regions_or_one(size_t part) {
  constexpr Kind kinds[] = {kSaveInAll, kSave, std::nullopt};
  return kinds[part % 3];
}

Kind offload(size_t part) {
  constexpr Kind kinds[] = {kOffload, kOffload, std::nullopt, kOffloadInAll, kSave};
  return kinds[part % 5];
}

Kind all_recompute(size_t /*part*/) {
  return kRecompute;
}

Kind bare(size_t /*part*/) {
  return std::nullopt;
}

void offload_through_hooks(CheckpointOptions& options) {
  options.saved_tensors_hooks = copying_hooks();
}

void offload_to_host(CheckpointOptions& options) {
  options.offload_store = host_memory_store();
}

/// Position of this thread in the tree of regions.
struct Place {
  std::string path = "at";
  size_t regions = 0;  ///< Number of regions so far inside this one.
};
thread_local Place here;

/// Says, as long as it lives, that the thread is in the region at `path`.
class PlaceGuard {
 public:
  explicit PlaceGuard(std::string path)
      : outer_(std::exchange(here, {.path = std::move(path)})), names_(here.path) {}
  PlaceGuard(const PlaceGuard&) = delete;
  PlaceGuard& operator=(const PlaceGuard&) = delete;
  ~PlaceGuard() { here = std::move(outer_); }

 private:
  Place outer_;
  NameScope names_;
};

Block placed(const Block& block) {
  return [block, path = here.path + "." + std::to_string(here.regions++)](const Tensors& inputs) {
    const PlaceGuard guard(path);
    return block(inputs);
  };
}

}  // namespace

bool Pattern::saves() const {
  constexpr size_t kPeriod = 5;
  bool any = around && around->policy != Policy::kRecompute;
  for (size_t part = 0; part < kPeriod; ++part) {
    const Kind kind = kind_of(part);
    any = any || (kind && kind->policy != Policy::kRecompute);
  }
  return any;
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {.name = "all SAVE", .kind_of = all_save},
      {.name = "SAVE, RECOMPUTE", .kind_of = save_and_recompute},
      {.name = "SAVE, bare", .kind_of = save_and_bare},
      {.name = "bare, SAVE", .kind_of = bare_and_save},
      {.name = "SAVE, SAVE, bare", .kind_of = chains_of_two},
      {.name = "SAVE in RECOMPUTE", .kind_of = save_and_bare, .around = kRecompute},
      {.name = "SAVE in SAVE", .kind_of = bare_and_save, .around = kSave},
      {.name = "all SAVE in all regions", .kind_of = all_regions},
      {.name = "SAVE in all regions, SAVE, bare", .kind_of = all_regions_or_one},
      {.name = "OFFLOAD, hooks", .kind_of = offload, .set_options = offload_through_hooks},
      {.name = "OFFLOAD, host memory", .kind_of = offload, .set_options = offload_to_host},
      {.name = "all RECOMPUTE", .kind_of = all_recompute},
      {.name = "nothing named", .kind_of = bare},
  };
  return all;
}

const Pattern& nothing_named() {
  return patterns().back();
}

Wrap checkpointed(const Pattern& pattern) {
  CheckpointOptions options{.name = "block"};
  pattern.set_options(options);
  return [options](const Block& block, const Tensors& inputs) {
    return checkpoint(options)(placed(block))(inputs);
  };
}

}  // namespace remat::matrix
