// SPDX-License-Identifier: BSD-3-Clause

// Catch2, version 2 or 3, under one set of names: Approx, ContainsSubstring, and Catch's CHECK.
#pragma once

// c10 also defines CHECK. Its header is included here, so that no later include brings that macro.
#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#undef CHECK
#endif

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>

using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
#else
#include <catch2/catch.hpp>

#include <string>

using Catch::Approx;

// NOLINTNEXTLINE(readability-identifier-naming): the name it has in Catch2 3.
inline auto ContainsSubstring(
    const std::string& text, Catch::CaseSensitive::Choice sensitivity = Catch::CaseSensitive::Yes) {
  return Catch::Matchers::Contains(text, sensitivity);
}
#endif
