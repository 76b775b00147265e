// SPDX-License-Identifier: BSD-3-Clause

// The text of the error that a call throws.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

/// Returns the text of the error, or "no error" if `fn` throws nothing.
template <class Fn>
std::string error_text(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}
