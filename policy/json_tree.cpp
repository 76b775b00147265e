// SPDX-License-Identifier: BSD-3-Clause

// Parses with nlohmann's SAX interface, and counts lines on the way.
#include <remat/policy/json_tree.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ranges>
#include <stdexcept>
#include <unordered_set>
#include <utility>

#include <remat/policy/printable_text.h>

namespace remat::detail {

namespace {

constexpr size_t max_depth = 64;
constexpr size_t max_shown = 200;
constexpr double max_exact_integer = 9007199254740992;  // 2^53

[[noreturn]] void raise(const std::string& what, const std::string& source, int line,
                        const std::string& sentence) {
  throw std::invalid_argument("[" + what + "] " + source + ":" + std::to_string(line) + ": " +
                              sentence);
}

/// Shortens the text of a file for an error, without splitting a UTF-8 character.
std::string cut(std::string text) {
  if (text.size() <= max_shown) return text;
  size_t end = max_shown;
  while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

/// Builds the tree. Every callback returns true; faults are thrown.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(const std::string& what, const std::string& source, const int& line)
      : what_(what), source_(source), line_(line) {}

  JsonNode take() { return std::move(root_); }

  bool null() override {
    add(JsonNode::Kind::kNull);
    return true;
  }
  bool boolean(bool value) override {
    add(JsonNode::Kind::kBool).boolean = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {
    JsonNode& node = add(JsonNode::Kind::kInteger);
    node.integer = value;
    node.number = static_cast<double>(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      fail("expected a number below 2^63, got " + std::to_string(value) +
           ". Give it in the file's units.");
    }
    return number_integer(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    add(JsonNode::Kind::kNumber).number = value;
    return true;
  }
  bool string(string_t& value) override {
    check_text(value);
    add(JsonNode::Kind::kString).text = value;
    return true;
  }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(JsonNode::Kind::kObject); }
  bool start_array(size_t /*size*/) override { return open(JsonNode::Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    check_text(value);
    if (!keys_.back().insert(value).second) {
      fail("key \"" + cut(value) + "\": expected once in its object, got it twice. Remove one.");
    }
    key_ = value;
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    const std::string text = as_printable(error.what());
    const size_t from = text.find("syntax error");
    fail("expected JSON, got a " + cut(from == std::string::npos ? text : text.substr(from)) +
         ". Mend the file.");
  }

 private:
  [[noreturn]] void fail(const std::string& sentence) const {
    raise(what_, source_, line_, sentence);
  }

  // A zero byte would end the text of an error that contains it.
  void check_text(const std::string& text) const {
    if (text.find('\0') != std::string::npos)
      fail("expected text without zero bytes, got one. Mend the file.");
  }

  JsonNode& add(JsonNode::Kind kind) {
    JsonNode* node = &root_;
    if (!stack_.empty()) {
      node = &stack_.back()->items.emplace_back();
      node->key = std::exchange(key_, "");
    }
    node->kind = kind;
    node->line = line_;
    return *node;
  }
  bool open(JsonNode::Kind kind) {
    if (stack_.size() == max_depth)
      fail("expected at most 64 levels of brackets, got more. Mend the file.");
    stack_.push_back(&add(kind));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  const std::string& what_;
  const std::string& source_;
  const int& line_;
  JsonNode root_;
  // Pointers stay valid, because a parent gets no other child while one of its children is open.
  std::vector<JsonNode*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;  // keys of the objects on the stack
  std::string key_;
};

/// The line of a path such as "block_types[1].ops[0]", or of the last existing node on the way.
int line_of(const JsonNode& root, std::string_view path) {
  const JsonNode* node = &root;
  while (!path.empty()) {
    if (path.front() == '.') path.remove_prefix(1);
    const JsonNode* next = nullptr;
    size_t length = 0;
    if (!path.empty() && path.front() == '[') {
      length = std::min(path.find(']'), path.size() - 1) + 1;
      size_t index = 0;
      for (const char c : path.substr(1, length - 2))
        index = index * 10 + static_cast<size_t>(c - '0');
      if (index < node->items.size()) next = &node->items[index];
    } else {
      length = std::min(path.find_first_of(".["), path.size());
      next = node->find(path.substr(0, length));
    }
    if (next == nullptr) break;
    node = next;
    path.remove_prefix(length);
  }
  return node->line;
}

}  // namespace

const JsonNode* JsonNode::find(std::string_view name) const {
  if (kind != Kind::kObject) return nullptr;
  const auto at = std::find_if(items.begin(), items.end(),
                               [&](const JsonNode& member) { return member.key == name; });
  return at == items.end() ? nullptr : &*at;
}

// Counts lines up to the character before the last one read, because the parser reads one character
// past the end of a number.
JsonNode parse_json(std::string_view text, const std::string& what, const std::string& source) {
  int line = 1;
  bool last_was_newline = false;
  TreeBuilder builder(what, source, line);
  const auto counted = std::views::transform(text, [&](char c) {
    if (last_was_newline) ++line;
    last_was_newline = c == '\n';
    return c;
  });
  if (!nlohmann::json::sax_parse(counted.begin(), counted.end(), &builder))
    raise(what, source, line, "expected JSON, got something else. Mend the file.");
  return builder.take();
}

void raise_fault(const std::string& what, const std::string& source, const JsonNode* root,
                 const Fault& fault) {
  const std::string line = root == nullptr ? "" : ":" + std::to_string(line_of(*root, fault.path));
  const std::string place = fault.place.empty() ? "" : " (" + fault.place + ")";
  throw std::invalid_argument("[" + what + "] " + source + line + ": " + fault.path + place +
                              ": expected " + fault.expected + ", got " + fault.got + ". " +
                              fault.advice);
}

void JsonValue::fail(const std::string& expected, const std::string& got) const {
  raise(what_, source_, node_->line,
        (path_.empty() ? "the whole text" : path_) + ": expected " + expected + ", got " + got +
            ". " + advice_);
}

std::string JsonValue::shown() const {
  switch (node_->kind) {
    case JsonNode::Kind::kNull:
      return "null";
    case JsonNode::Kind::kBool:
      return node_->boolean ? "true" : "false";
    case JsonNode::Kind::kInteger:
      return std::to_string(node_->integer);
    case JsonNode::Kind::kNumber:
      return nlohmann::json(node_->number).dump();
    case JsonNode::Kind::kString:
      return "\"" + cut(node_->text) + "\"";
    case JsonNode::Kind::kArray:
      return "an array of " + std::to_string(node_->items.size());
    case JsonNode::Kind::kObject:
      return "an object";
  }
  return "";
}

void JsonValue::check_members(std::initializer_list<const char*> required,
                              std::initializer_list<const char*> optional) const {
  if (node_->kind != JsonNode::Kind::kObject) fail("an object", shown());
  for (const char* key : required) {
    if (!has(key)) fail("a member \"" + std::string(key) + "\"", "none");
  }
  const auto among = [](const std::string& key, const auto& names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return key == name; });
  };
  for (const JsonNode& node : node_->items) {
    if (among(node.key, required) || among(node.key, optional)) continue;
    member(node).fail("no member of this name", "\"" + cut(node.key) + "\"");
  }
}

JsonValue JsonValue::member(const JsonNode& node) const {
  return {node, what_, source_, path_.empty() ? node.key : path_ + "." + node.key, advice_};
}

JsonValue JsonValue::at(const char* key) const {
  const JsonNode* const node = node_->find(key);
  if (node == nullptr) fail("a member \"" + std::string(key) + "\"", "none");
  return member(*node);
}

std::vector<JsonValue> JsonValue::items() const {
  if (node_->kind != JsonNode::Kind::kArray) fail("an array", shown());
  std::vector<JsonValue> all;
  all.reserve(node_->items.size());
  for (const JsonNode& item : node_->items) {
    all.emplace_back(item, what_, source_, indexed(path_, all.size()), advice_);
  }
  return all;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  if (node_->kind != JsonNode::Kind::kObject) fail("an object", shown());
  std::vector<std::pair<std::string, JsonValue>> all;
  for (const JsonNode& node : node_->items) all.emplace_back(node.key, member(node));
  return all;
}

std::string JsonValue::string() const {
  if (node_->kind != JsonNode::Kind::kString) fail("a string", shown());
  return node_->text;
}

bool JsonValue::boolean() const {
  if (node_->kind != JsonNode::Kind::kBool) fail("true or false", shown());
  return node_->boolean;
}

double JsonValue::number() const {
  if (node_->kind != JsonNode::Kind::kNumber && node_->kind != JsonNode::Kind::kInteger)
    fail("a number", shown());
  return node_->number;
}

int64_t JsonValue::integer() const {
  if (node_->kind == JsonNode::Kind::kInteger) return node_->integer;
  if (node_->kind != JsonNode::Kind::kNumber || node_->number != std::floor(node_->number) ||
      std::abs(node_->number) > max_exact_integer) {
    fail("a whole number", shown());
  }
  return static_cast<int64_t>(node_->number);
}

std::vector<std::string> JsonValue::strings() const {
  std::vector<std::string> all;
  for (const JsonValue& item : items()) all.push_back(item.string());
  return all;
}

int32_t JsonValue::int32(int32_t least) const {
  const int64_t value = integer();
  if (value < least || value > std::numeric_limits<int32_t>::max())
    fail("a number from " + std::to_string(least) + " on", shown());
  return static_cast<int32_t>(value);
}

int64_t JsonValue::bytes() const {
  const int64_t value = integer();
  if (value < 0) fail("0 bytes or more", shown());
  return value;
}

std::vector<int32_t> JsonValue::ints() const {
  std::vector<int32_t> all;
  for (const JsonValue& item : items()) all.push_back(item.int32());
  return all;
}

std::vector<JsonValue> JsonValue::row(size_t size) const {
  std::vector<JsonValue> all = items();
  if (all.size() != size) fail("an array of " + std::to_string(size), shown());
  return all;
}

}  // namespace remat::detail
