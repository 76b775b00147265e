// SPDX-License-Identifier: BSD-3-Clause

// What the process has learned of regions with the same name and function: whether tapes can be
// written of them, and whether they gave the right values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/region_body.h>

namespace remat {

/// A hash of the ops so far, after each record of a tape.
using OpHashes = std::vector<uint64_t>;

/// The sequences of ops whose values a replay has compared, as they were when asked for.
class REMAT_API TrustedOps {
 public:
  using All = std::vector<std::shared_ptr<const OpHashes>>;
  TrustedOps() = default;
  explicit TrustedOps(std::shared_ptr<const All> all) : all_(std::move(all)) {}

  bool empty() const { return !all_ || all_->empty(); }

  /// True if a sequence begins with the ops that were asked about so far, followed by record
  /// `number`, after which the hash is `hash`. Not to be asked again after it was false.
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

/// What is known of the regions of one name and function. Any thread.
///
/// Note [Trusting a tape]: what code writes through a raw pointer no dispatcher sees. So the values
/// that the first forward saves are hashed, and its replay compared with them. A tape with the same
/// ops is trusted after that; where one goes on with other ops, what it saves from there on is
/// hashed and compared, too. A dispatch mode that the function opens may compute anything in the
/// place of an op, so such a tape is never trusted.
class REMAT_API TapeTrust {
 public:
  static TapeTrust of(const std::string& region_name, const RegionBody& body);

  struct Advice {
    bool refused;        ///< No tape could be written before: the function is to be called.
    TrustedOps trusted;  ///< What need not be hashed in the forward.
  };
  Advice advice() const;

  /// To be called when no tape can be written. True the first time: the caller tells the user why.
  bool refuse() const;

  /// To be called when a replay of such ops has given the right values.
  void trust(const OpHashes& ops) const;

 private:
  explicit TapeTrust(uint64_t key) : key_(key) {}

  uint64_t key_;
};

}  // namespace remat
