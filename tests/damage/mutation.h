// SPDX-License-Identifier: BSD-3-Clause

// Damaged files.
#pragma once

#include <random>
#include <string>

namespace remat::test {

/// The text with one to three bits changed.
std::string flipped(const std::string& text, std::mt19937& random);

/// The text with one to three bytes, numbers, words or stretches changed.
std::string mutated(const std::string& text, std::mt19937& random);

/// JSON with one to three values or members left out, doubled, exchanged, renamed, wrapped or
/// replaced by odd ones: JSON again.
std::string rearranged(const std::string& text, std::mt19937& random);

}  // namespace remat::test
