// SPDX-License-Identifier: BSD-3-Clause

// Process-wide knowledge about regions with the same name and function: whether tapes of such
// regions can be recorded, and whether replays of those tapes gave the right values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/region_body.h>

namespace remat {

/// Running hashes of a tape's ops: element i covers records 0 to i.
using OpHashes = std::vector<uint64_t>;

/// A snapshot of the op sequences whose replayed values were found to equal the forward's.
class REMAT_API TrustedOps {
 public:
  using All = std::vector<std::shared_ptr<const OpHashes>>;
  TrustedOps() = default;
  explicit TrustedOps(std::shared_ptr<const All> all) : all_(std::move(all)) {}

  const std::shared_ptr<const All>& all() const { return all_; }
  bool empty() const { return !all_ || all_->empty(); }

  /// Takes the next record, `number`, after which the running hash is `hash`. Returns true if a
  /// trusted sequence begins with all records so far. Do not call it again once it returned false.
  bool follow(size_t number, uint64_t hash) {
    for (; !empty() && at_ < all_->size(); ++at_) {
      const OpHashes& known = *(*all_)[at_];
      if (number < known.size() && known[number] == hash) return true;
    }
    return false;
  }

 private:
  std::shared_ptr<const All> all_;
  size_t at_ = 0;
};

/// Knowledge about the regions that have the same name and function. Usable from any thread.
///
/// Note [Trusting a tape]: the dispatcher does not see writes through a raw pointer. So the values
/// that the first forward saves are hashed, and its replay is compared with these hashes. Later
/// tapes with the same ops are trusted. If a tape begins with trusted ops and goes on with others,
/// the values that it saves from there on are hashed and compared, too. A dispatch mode that the
/// function opens may compute anything in place of an op, so such a tape is never trusted.
class REMAT_API TapeTrust {
 public:
  static TapeTrust of(const std::string& region_name, const RegionBody& body);

  struct Advice {
    bool refused = false;  ///< refuse() was called before, so replays must call the function.
    TrustedOps trusted{};  ///< Op sequences that need no hashes.
  };
  Advice advice() const;

  /// Call it when no tape can be recorded, or when a replay gave other values than the forward.
  /// Returns true the first time; a caller that could not record a tape must warn then.
  bool refuse() const;

  /// Call it when a replay of these ops has given the right values.
  void trust(const OpHashes& ops) const;

 private:
  explicit TapeTrust(uint64_t key) : key_(key) {}

  uint64_t key_;
};

}  // namespace remat
