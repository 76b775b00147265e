// SPDX-License-Identifier: BSD-3-Clause

// Random damage to the text of files.
#pragma once

#include <random>
#include <string>

namespace remat::test {

/// Returns the text with one to three bits changed.
std::string flipped(const std::string& text, std::mt19937& random);

/// Returns the text with one to three bytes, numbers, words or stretches changed.
std::string mutated(const std::string& text, std::mt19937& random);

/// Returns JSON with one to three values or members removed, duplicated, exchanged, renamed,
/// wrapped or replaced by odd values. The result is valid JSON.
std::string rearranged(const std::string& text, std::mt19937& random);

}  // namespace remat::test
