// SPDX-License-Identifier: BSD-3-Clause

// Reads the pickle opcodes that PyTorch's memory viewer supports and snapshots use.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/catch.h"

namespace remat::test {

class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : bytes_(bytes) {}

  nlohmann::json run() {
    CHECK(take(2) == std::string_view("\x80\x02"));
    while (true) {
      const char opcode = take(1)[0];
      if (opcode == '.') break;
      step(opcode);
    }
    CHECK(bytes_.empty());
    REQUIRE(stack_.size() == 1);
    return stack_[0].value;
  }

 private:
  /// A value on the stack. The memo has a copy, number `memo`, to update when a list is filled.
  struct Value {
    nlohmann::json value;
    int64_t memo = -1;
  };

  void step(char opcode) {
    switch (opcode) {
      case '}':
        return push(nlohmann::json::object());
      case ']':
        return push(nlohmann::json::array());
      case 'X':
        return push(std::string(take(number(4))));
      case 'K':
        return push(number(1));
      case 'M':
        return push(number(2));
      case 'J':
        return push(static_cast<int32_t>(number(4)));
      case '\x8a':
        REQUIRE(number(1) == 8);
        return push(static_cast<int64_t>(number(8)));
      case '\x88':
      case '\x89':
        return push(opcode == '\x88');
      case 'q':
      case 'r':
        return remember(static_cast<int64_t>(number(opcode == 'q' ? 1 : 4)));
      case 'h':
      case 'j':
        return push(memo_.at(static_cast<int64_t>(number(opcode == 'h' ? 1 : 4))));
      case 'a':
        return append(pop());
      case 's':
        return set_item(pop());
      default:
        FAIL("an opcode that the viewer does not know: " << static_cast<int>(opcode));
    }
  }

  void push(nlohmann::json value) { stack_.push_back({std::move(value), -1}); }

  nlohmann::json pop() {
    REQUIRE(!stack_.empty());
    nlohmann::json value = std::move(stack_.back().value);
    stack_.pop_back();
    return value;
  }

  void remember(int64_t memo) {
    stack_.back().memo = memo;
    CHECK(memo_.emplace(memo, stack_.back().value).second);
  }

  void append(nlohmann::json item) {
    Value& list = stack_.back();
    list.value.push_back(std::move(item));
    if (list.memo >= 0) memo_[list.memo] = list.value;
  }

  void set_item(nlohmann::json value) {
    const std::string key = pop();
    stack_.back().value[key] = std::move(value);
  }

  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (size_t i = bytes; i > 0; --i)
      value = value << 8U | static_cast<unsigned char>(taken[i - 1]);
    return value;
  }

  std::string_view take(size_t size) {
    REQUIRE(size <= bytes_.size());
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;  // the bytes still to be read
  std::vector<Value> stack_;
  std::map<int64_t, nlohmann::json> memo_;
};

}  // namespace remat::test
