// SPDX-License-Identifier: BSD-3-Clause

// Waiting for copies that may fail.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <remat/offload/copy_event.h>

namespace remat::detail {

inline bool is_pending(const CopyEventPtr& event) {
  return event && !event->is_done();
}

inline void wait_quietly(const CopyEventPtr& event) {
  try {
    if (event) event->wait();
  } catch (const std::exception&) {
    // Code that later needs the storage gets the error.
  }
}

inline std::string first_line(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace remat::detail
