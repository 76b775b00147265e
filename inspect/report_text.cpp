// SPDX-License-Identifier: BSD-3-Clause

// Formats numbers and aligned columns; compares and joins names by the last number in them.
#include "report_text.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>

namespace remat {
namespace {

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
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

std::string bytes_str(size_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return c10::str(bytes, " B");
  auto value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits.at(unit));
  return text.data();
}

std::string count_str(size_t count, const std::string& what) {
  return c10::str(count, " ", what, count == 1 ? "" : "s");
}

std::string columns(const std::vector<std::vector<std::string>>& rows, size_t indent) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (const auto i : c10::irange(row.size())) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line(indent, ' ');
    for (const auto i : c10::irange(row.size())) {
      const std::string space(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += "\n" + line;
  }
  return text;
}

bool naturally_less(const std::string& a, const std::string& b) {
  return strverscmp(a.c_str(), b.c_str()) < 0;
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
