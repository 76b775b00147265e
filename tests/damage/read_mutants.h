// SPDX-License-Identifier: BSD-3-Clause

// Reads damaged files one by one, and counts the outcomes.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "damage/mutation.h"
#include "support/catch.h"

namespace remat::test {

// 3 * 2,000 * 20 shards: a campaign reads 120,000 files of each format for each kind of damage.
constexpr uint64_t files_per_program = 3;

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

inline uint64_t mutants_per_damage() {
  return files_per_program * from_environment("REMAT_FUZZ_N", 2000);
}

struct Tally {
  uint64_t read = 0;
  uint64_t refused = 0;
  uint64_t accepted = 0;
  uint64_t changed = 0;  ///< accepted, with other contents than before
};

/// Reads each proper prefix of `texts`, and files damaged in each way, with one seed each.
/// `names_the_place(error)` checks an error's text; `fault(which, text, tally)` reads `text`,
/// throws its error or counts it in `tally`, and returns what is wrong.
template <class NamesThePlace, class Fault>
Tally read_mutants(const std::vector<std::string>& texts, NamesThePlace&& names_the_place,
                   Fault&& fault) {
  Tally tally;
  const auto read = [&](const std::string& origin, size_t which, const std::string& text) {
    ++tally.read;
    std::string found;
    try {
      found = fault(which, text, tally);
    } catch (const std::invalid_argument& error) {
      ++tally.refused;
      if (!names_the_place(error.what()))
        found = std::string("an error without its place: ") + error.what();
    } catch (const std::exception& error) {
      found = std::string("not an error of the file: ") + error.what();
    }
    if (!found.empty()) FAIL(origin << ": " << found << "\n" << text);
  };
  const uint64_t count = mutants_per_damage();
  const uint64_t shard = from_environment("REMAT_FUZZ_SHARD", 0);
  if (shard == 0) {
    for (size_t which = 0; which < texts.size(); ++which) {
      for (size_t length = 0; length < texts[which].size(); ++length)
        read("the first " + std::to_string(length) + " bytes", which,
             texts[which].substr(0, length));
    }
  }
  constexpr std::array damages = {std::pair{"bits", &flipped}, std::pair{"text", &mutated},
                                  std::pair{"values", &rearranged}};
  for (const auto& [damage, damaged] : damages) {
    for (uint64_t seed = shard * count; seed < (shard + 1) * count; ++seed) {
      std::mt19937 random(static_cast<uint32_t>(seed));
      const size_t which = seed % texts.size();
      read(std::string(damage) + ", seed " + std::to_string(seed), which,
           damaged(texts[which], random));
    }
  }
  return tally;
}

}  // namespace remat::test
