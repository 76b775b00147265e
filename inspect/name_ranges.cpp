// SPDX-License-Identifier: BSD-3-Clause

// Compares and joins names by the last number in them.
#include "name_ranges.h"

#include <cctype>
#include <cstddef>

namespace remat {
namespace {

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

size_t end_of_number(const std::string& name, size_t begin) {
  while (begin < name.size() && is_digit(name[begin])) ++begin;
  return begin;
}

/// A name split at its last number.
struct NumberedName {
  explicit NumberedName(const std::string& name) {
    size_t end = name.size();
    while (end > 0 && !is_digit(name[end - 1])) --end;
    size_t begin = end;
    while (begin > 0 && is_digit(name[begin - 1])) --begin;
    before = name.substr(0, begin);
    number = name.substr(begin, end - begin);
    after = name.substr(end);
  }

  bool is_right_after(const NumberedName& other) const {
    constexpr size_t kDigits = 9;  // the most digits that surely fit into an int
    if (number.empty() || other.number.empty() || number.size() > kDigits) return false;
    return before == other.before && after == other.after &&
           std::stoi(number) == std::stoi(other.number) + 1;
  }

  std::string before, number, after;
};

}  // namespace

bool naturally_less(const std::string& a, const std::string& b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    while (i + 1 < a.size() && a[i] == '0' && is_digit(a[i + 1])) ++i;
    while (j + 1 < b.size() && b[j] == '0' && is_digit(b[j + 1])) ++j;
    const size_t i_end = end_of_number(a, i);
    const size_t j_end = end_of_number(b, j);
    if (i_end - i != j_end - j) return i_end - i < j_end - j;
    const int order = a.compare(i, i_end - i, b, j, j_end - j);
    if (order != 0) return order < 0;
    i = i_end;
    j = j_end;
  }
  return a.size() - i < b.size() - j;
}

std::string name_ranges(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size();) {
    const NumberedName first(names[i]);
    NumberedName last = first;
    size_t end = i + 1;
    for (; end < names.size(); ++end) {
      const NumberedName next(names[end]);
      if (names[end] == names[end - 1]) continue;
      if (!next.is_right_after(last)) break;
      last = next;
    }
    text += (text.empty() ? "" : ", ") + first.before + first.number;
    if (last.number != first.number) text += "-" + last.number;
    text += first.after.empty() && first.before.empty() && first.number.empty()
                ? "region without a name"
                : first.after;
    i = end;
  }
  return text;
}

}  // namespace remat
