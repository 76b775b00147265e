// SPDX-License-Identifier: BSD-3-Clause

// No warnings.
#pragma once

#include <c10/util/Exception.h>

/// While alive, warnings on this thread are dropped.
class Silence {
 private:
  struct Handler : c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };
  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
};
