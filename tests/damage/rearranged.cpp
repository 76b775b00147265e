// SPDX-License-Identifier: BSD-3-Clause

// Random changes to values of JSON that keep it valid.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "damage/mutation.h"

namespace remat::test {

namespace {

using Json = nlohmann::ordered_json;

const std::vector<Json>& odd_values() {
  static const std::vector<Json> values = {
      nullptr,
      true,
      0,
      -1,
      std::numeric_limits<int64_t>::max(),
      std::numeric_limits<uint64_t>::max(),
      0.5,
      -0.0,
      1e300,
      5e-324,
      "",
      "*",
      "[",
      std::string(1, '\0'),
      "\xf0\x9f\x94\xa5\"\\\n",
      std::string(5000, 'a'),
      Json::array(),
      Json::object(),
  };
  return values;
}

class Rearranger {
 public:
  Rearranger(const std::string& text, std::mt19937& random)
      : root_(Json::parse(text)), random_(random) {}

  std::string run() {
    const size_t changes = 1 + below(3);
    for (size_t i = 0; i < changes; ++i) change();
    return root_.dump(below(2) == 0 ? -1 : 2);
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  static void collect(Json& node, std::vector<Json*>& all) {
    all.push_back(&node);
    if (!node.is_structured()) return;
    for (Json& child : node) collect(child, all);
  }

  Json& any() {
    std::vector<Json*> all;
    collect(root_, all);
    return *all[below(all.size())];
  }

  void change() {
    Json& node = any();
    switch (below(8)) {
      case 0:
        node = odd_values()[below(odd_values().size())];
        break;
      case 1:
        node = Json(any());  // a copy, since one may contain the other
        break;
      case 2:
        leave_out(node);
        break;
      case 3:
        add(node, Json(any()));
        break;
      case 4:
        rename(node);
        break;
      case 5:
        if (node.is_array()) std::shuffle(node.begin(), node.end(), random_);
        break;
      case 6:
        wrap(node);
        break;
      default:
        exchange(node);
    }
  }

  void leave_out(Json& node) {
    if (!node.is_structured() || node.empty()) return;
    node.erase(std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size()))));
  }

  void exchange(Json& node) {
    if (!node.is_structured() || node.empty()) return;
    const auto child = [&] {
      return std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size())));
    };
    std::swap(*child(), *child());
  }

  void add(Json& node, Json value) {
    if (node.is_object()) node[below(2) == 0 ? "odd" : any_key()] = std::move(value);
    if (node.is_array())
      node.insert(std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size() + 1))),
                  std::move(value));
  }

  std::string any_key() {
    const Json& node = any();
    if (!node.is_object() || node.empty()) return "";
    return std::next(node.items().begin(), static_cast<std::ptrdiff_t>(below(node.size()))).key();
  }

  void rename(Json& node) {
    if (!node.is_object() || node.empty()) return;
    const auto at = std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size())));
    Json value = at.value();
    node.erase(at);
    node[any_key()] = std::move(value);
  }

  void wrap(Json& node) {
    for (size_t levels = below(4) == 0 ? 100 : 1; levels > 0; --levels) {
      Json wrapped = Json::array();
      wrapped.push_back(std::move(node));
      node = std::move(wrapped);
    }
  }

  Json root_;
  std::mt19937& random_;
};

}  // namespace

std::string rearranged(const std::string& text, std::mt19937& random) {
  return Rearranger(text, random).run();
}

}  // namespace remat::test
