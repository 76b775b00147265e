// SPDX-License-Identifier: BSD-3-Clause

// Silences warnings.
#pragma once

#include <c10/util/Exception.h>

#include <string>
#include <vector>

/// Hides the warnings of this thread as long as it lives.
class Silence {
 public:
  /// Returns the texts of the silenced warnings.
  const std::vector<std::string>& texts() const { return handler_.texts; }

 private:
  struct Handler : c10::WarningHandler {
    std::vector<std::string> texts;
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};
