// SPDX-License-Identifier: BSD-3-Clause

// Random changes to text that keep JSON valid about as often as they break it.
#include "damage/mutation.h"

#include <array>
#include <cctype>
#include <utility>

namespace remat::test {

namespace {

class Mutator {
 public:
  Mutator(std::string text, std::mt19937& random) : text_(std::move(text)), random_(random) {}

  std::string run() {
    const size_t changes = 1 + below(3);
    for (size_t i = 0; i < changes && !text_.empty(); ++i) change();
    return std::move(text_);
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  void change() {
    switch (below(8)) {
      case 0:
        text_[below(text_.size())] = static_cast<char>(below(256));
        break;
      case 1:
        text_.insert(below(text_.size()), 1, "{}[]\",:0123456789-.eE \n\\"[below(24)]);
        break;
      case 2:
        text_.erase(below(text_.size()), 1 + below(4));
        break;
      case 3: {
        const size_t from = below(text_.size());
        const std::string stretch = text_.substr(from, 1 + below(60));
        text_.insert(below(text_.size()), stretch);
        break;
      }
      case 4:
        if (below(4) == 0) text_.resize(below(text_.size()));
        break;
      case 5:
      case 6:
        replace_number();
        break;
      default:
        swap_words();
    }
  }

  /// Returns [from, to) of the next number or word, from a random position on.
  template <typename Test>
  std::pair<size_t, size_t> next(Test test) {
    size_t from = below(text_.size());
    while (from < text_.size() && !test(text_[from])) ++from;
    size_t to = from;
    while (to < text_.size() && test(text_[to])) ++to;
    return {from, to};
  }

  void replace_number() {
    static const std::array<const char*, 18> numbers = {"0",
                                                        "1",
                                                        "2",
                                                        "3",
                                                        "-1",
                                                        "8",
                                                        "0.5",
                                                        "1e3",
                                                        "1e300",
                                                        "-0.0",
                                                        "9223372036854775807",
                                                        "9223372036854775808",
                                                        "18446744073709551616",
                                                        "1125899906842624",
                                                        "4503599627370496",
                                                        "null",
                                                        "true",
                                                        "\"7\""};
    const auto [from, to] =
        next([](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
    if (from == to) return;
    text_.replace(from, to - from, numbers[below(numbers.size())]);
  }

  void swap_words() {
    const auto is_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    };
    const auto [from, to] = next(is_word);
    const auto [other, end] = next(is_word);
    const std::string word = text_.substr(other, end - other);
    text_.replace(from, to - from, word);
  }

  std::string text_;
  std::mt19937& random_;
};

}  // namespace

std::string flipped(const std::string& text, std::mt19937& random) {
  std::string result = text;
  std::uniform_int_distribution<size_t> bit(0, 8 * text.size() - 1);
  for (int flips = std::uniform_int_distribution<int>(1, 3)(random); flips > 0; --flips) {
    const size_t at = bit(random);
    result[at / 8] = static_cast<char>(result[at / 8] ^ (1 << (at % 8)));
  }
  return result;
}

std::string mutated(const std::string& text, std::mt19937& random) {
  return Mutator(text, random).run();
}

}  // namespace remat::test
