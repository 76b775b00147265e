// SPDX-License-Identifier: BSD-3-Clause

// Parsing and formatting of budgets.
#include <remat/policy/budget_text.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

namespace remat::detail {
namespace {

using Unit = std::pair<std::string_view, int64_t>;  // name and bytes

constexpr int64_t most_bytes = 9000000000000000000;

constexpr std::array<Unit, 9> units = {{{"B", 1},
                                        {"kB", 1000},
                                        {"MB", 1000000},
                                        {"GB", 1000000000},
                                        {"TB", 1000000000000},
                                        {"KiB", int64_t{1} << 10},
                                        {"MiB", int64_t{1} << 20},
                                        {"GiB", int64_t{1} << 30},
                                        {"TiB", int64_t{1} << 40}}};

/// A number at the beginning of a text, and the text after it.
template <typename Number>
std::pair<std::optional<Number>, std::string_view> read_amount(std::string_view text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc()) return {};
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  return {value, unit};
}

/// The unit of that name, ignoring case; null if there is none.
const Unit* unit_named(std::string_view name) {
  const auto is_same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  const auto* at = std::find_if(units.begin(), units.end(), [&](const Unit& unit) {
    return std::equal(unit.first.begin(), unit.first.end(), name.begin(), name.end(), is_same);
  });
  return at == units.end() ? nullptr : at;
}

/// A share of `bytes`. A share of 1 is exact.
int64_t share_of(int64_t bytes, double share) {
  return share == 1 ? bytes : static_cast<int64_t>(share * static_cast<double>(bytes));
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> names{"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < names.size(); ++unit) value /= 1000;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, names[unit]);
  return text.data();
}

std::string percent_text(double share, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f %%", digits, 100 * share);
  return text.data();
}

std::optional<int64_t> bytes_of(std::string_view text, int64_t whole) {
  // Read whole numbers as integers, because doubles cannot represent odd numbers beyond 2^53.
  const auto [whole_number, exact_unit] = read_amount<int64_t>(text);
  const Unit* const exact = unit_named(exact_unit);
  if (whole_number && exact != nullptr && *whole_number >= 0 &&
      *whole_number <= most_bytes / exact->second) {
    return *whole_number * exact->second;
  }
  const auto [value, unit] = read_amount<double>(text);
  if (!value || !(*value >= 0 && *value <= static_cast<double>(most_bytes))) return std::nullopt;
  const Unit* const known = unit_named(unit);
  if (unit != "%" && known == nullptr) return std::nullopt;
  const double share = *value / 100;
  const double bytes = known == nullptr ? share * static_cast<double>(whole)
                                        : *value * static_cast<double>(known->second);
  if (bytes > static_cast<double>(most_bytes)) return std::nullopt;
  return known == nullptr ? share_of(whole, share) : static_cast<int64_t>(bytes);
}

std::optional<double> fraction_of(std::string_view text) {
  const auto [value, rest] = read_amount<double>(text);
  const bool is_fraction = value && rest.empty() && *value >= 0 && *value <= 1;
  return is_fraction ? value : std::nullopt;
}

}  // namespace remat::detail
