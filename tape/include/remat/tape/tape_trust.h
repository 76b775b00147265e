// SPDX-License-Identifier: BSD-3-Clause

// What the process has learned of regions with the same name and function: whether tapes can be
// written of them, and whether they gave the right values.
#pragma once

#include <cstdint>
#include <string>

#include <remat/tape/export.h>
#include <remat/tape/region_body.h>

namespace remat {

/// Of the regions of one name and function. Any thread.
///
/// Note [Trusting a tape]: what code writes through a raw pointer no dispatcher sees. So the values
/// that the first forward saves are hashed, and its replay compared with them. A tape with the same
/// ops is trusted after that; one with other ops makes the next forward be hashed again. A dispatch
/// mode that the function opens may compute anything in the place of an op, so such a tape is never
/// trusted.
class REMAT_API TapeTrust {
 public:
  static TapeTrust of(const std::string& region_name, const RegionBody& body);

  struct Advice {
    bool refused;       ///< No tape could be written before: the function is to be called.
    bool wants_hashes;  ///< Values are to be hashed in the forward.
  };
  Advice advice() const;

  /// No tape can be written. True the first time: the caller tells the user why.
  bool refuse() const;

  /// A forward without hashes has written a tape with ops of this hash.
  void note_ops(uint64_t ops) const;
  /// A replay of such ops has given the right values.
  void trust_ops(uint64_t ops) const;

 private:
  explicit TapeTrust(uint64_t key) : key_(key) {}

  uint64_t key_;
};

}  // namespace remat
