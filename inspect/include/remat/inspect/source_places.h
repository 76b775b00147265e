// SPDX-License-Identifier: BSD-3-Clause

// Finds which line of the program is running.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include <remat/engine/export.h>

namespace remat {

/// A place in the program's code. Valid while the process lives.
struct SourcePlace {
  const void* code = nullptr;  ///< Null if unknown.
  int64_t at = 0;              ///< Position within `code`.

  auto operator<=>(const SourcePlace&) const = default;
};

/// Finds source places of one language. Thread-safe.
class REMAT_API SourcePlaces {
 public:
  SourcePlaces() = default;
  SourcePlaces(const SourcePlaces&) = delete;
  SourcePlaces& operator=(const SourcePlaces&) = delete;
  virtual ~SourcePlaces() = default;

  /// The innermost place on this thread's stack that is neither in LibTorch nor in remat.
  virtual SourcePlace here() = 0;

  /// A text such as "model.py:12 forward".
  virtual std::string text(const SourcePlace& place) = 0;

  /// Finds places in C++ code.
  static SourcePlaces& of_cpp();

  /// Finds places in Python code; null without Python.
  static SourcePlaces* of_python();
  static void set_python(SourcePlaces* places);  ///< `places` is never freed.
};

}  // namespace remat
