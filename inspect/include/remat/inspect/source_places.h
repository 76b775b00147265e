// SPDX-License-Identifier: BSD-3-Clause

// Which line of the program runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <remat/tape/export.h>

namespace remat {

/// A place in the program's code, while the process lives.
struct SourcePlace {
  const void* code = nullptr;  ///< Null: not known.
  int64_t at = 0;              ///< In it

  bool operator==(const SourcePlace&) const = default;
};

struct SourcePlaceHash {
  size_t operator()(const SourcePlace& place) const {
    return std::hash<const void*>()(place.code) * 31 + std::hash<int64_t>()(place.at);
  }
};

/// Finds the places of one language. Any thread may call anything.
class REMAT_API SourcePlaces {
 public:
  SourcePlaces() = default;
  SourcePlaces(const SourcePlaces&) = delete;
  SourcePlaces& operator=(const SourcePlaces&) = delete;
  virtual ~SourcePlaces() = default;

  /// The innermost place of the program that runs on this thread, outside of LibTorch and remat.
  virtual SourcePlace here() = 0;

  /// "model.py:12 forward"
  virtual std::string text(const SourcePlace& place) = 0;

  /// Those of C++.
  static SourcePlaces& of_cpp();

  /// Those of Python; null where there is none.
  static SourcePlaces* of_python();
  static void set_python(SourcePlaces* places);  ///< Never freed.
};

}  // namespace remat
