// SPDX-License-Identifier: BSD-3-Clause

// The error of a replay that differs from its forward.
#pragma once

#include <c10/util/Exception.h>

#include <source_location>
#include <string>
#include <utility>

#include <remat/engine/export.h>

namespace remat {

/// Forward and replay of a region differ. Raised inside backward, at the first difference; the
/// message names region and slot, what the forward and the replay saved, and what to do.
class REMAT_API ReplayMismatch : public c10::Error {
 public:
  explicit ReplayMismatch(std::string message,
                          std::source_location thrown = std::source_location::current())
      : Error({thrown.function_name(), thrown.file_name(), thrown.line()}, std::move(message)) {}
};

}  // namespace remat
