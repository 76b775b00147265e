// SPDX-License-Identifier: BSD-3-Clause

// Process-wide knowledge about regions with the same name and function: whether tapes of them can
// be recorded, and whether these gave the right values.
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

/// A running hash of the ops, after each record of a tape.
using OpHashes = std::vector<uint64_t>;

/// A snapshot of the op sequences whose values a replay has compared.
class REMAT_API TrustedOps {
 public:
  using All = std::vector<std::shared_ptr<const OpHashes>>;
  TrustedOps() = default;
  explicit TrustedOps(std::shared_ptr<const All> all) : all_(std::move(all)) {}

  const std::shared_ptr<const All>& all() const { return all_; }
  bool empty() const { return !all_ || all_->empty(); }

  /// True if a known sequence begins with the ops passed so far, followed by record `number`, after
  /// which the hash is `hash`. Do not call it again after it returned false.
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

/// Knowledge about the regions of one name and function. Usable from any thread.
///
/// Note [Trusting a tape]: the dispatcher does not see writes through a raw pointer. So the values
/// that the first forward saves are hashed, and its replay is compared with them. Later tapes with
/// the same ops are trusted. If a tape goes on with other ops, what it saves from there on is
/// hashed and compared, too. A dispatch mode that the function opens may compute anything in place
/// of an op, so such a tape is never trusted.
class REMAT_API TapeTrust {
 public:
  static TapeTrust of(const std::string& region_name, const RegionBody& body);

  struct Advice {
    bool refused = false;  ///< No tape could be recorded before: call the function.
    TrustedOps trusted{};  ///< Ops that need no hashes in the forward.
  };
  Advice advice() const;

  /// Call it when no tape can be recorded. True the first time: then the caller warns the user.
  bool refuse() const;

  /// Call it when a replay of these ops has given the right values.
  void trust(const OpHashes& ops) const;

 private:
  explicit TapeTrust(uint64_t key) : key_(key) {}

  uint64_t key_;
};

}  // namespace remat
