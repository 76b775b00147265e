// SPDX-License-Identifier: BSD-3-Clause

// JSON as a tree whose values know their line, and a reader whose errors name line and key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace remat::detail {

struct JsonNode {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  int line = 0;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;  ///< Also set for kInteger
  std::string text;
  std::string key;              ///< Name of a member of an object
  std::vector<JsonNode> items;  ///< Elements of an array, or members of an object

  /// The member; nullptr if there is no such member.
  const JsonNode* find(std::string_view name) const;
};

/// @throws std::invalid_argument for malformed text, a duplicate member, more than 64 levels, a
/// zero byte in a string, or an integer from 2^63 to 2^64 - 1. Integers further from 0 become
/// kNumber.
JsonNode parse_json(std::string_view text, const std::string& what, const std::string& source);

/// A path such as "block_types[1]".
inline std::string indexed(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

/// Thrown by checks of profiles and plans, which know neither the source of a text nor its lines.
struct Fault {
  std::string path;  ///< Path as in the JSON, "block_types[1].ops[0].ins[2]"
  std::string expected;
  std::string got;
  std::string advice;      ///< What to do, as a sentence
  std::string place = {};  ///< The path in names, "type 'attn', op 'attn.av'"; may be empty
};

/// @throws std::invalid_argument `[what] source:line: path (place): expected ..., got .... advice`,
/// where line is that of the path in `root`. If `root` is null, the message has no line.
[[noreturn]] void raise_fault(const std::string& what, const std::string& source,
                              const JsonNode* root, const Fault& fault);

/// Calls `check`. If it throws a Fault, throws that fault's std::invalid_argument: see
/// raise_fault().
template <typename Check>
void raise_faults(const std::string& what, const std::string& source, const JsonNode* root,
                  const Check& check) {
  try {
    check();
  } catch (const Fault& fault) {
    raise_fault(what, source, root, fault);
  }
}

/// A value that is being read. Copies are cheap. The tree must outlive it.
class JsonValue {
 public:
  /// Errors begin with the place of the value, "[what] source:12: path: ", and end with `advice`.
  JsonValue(const JsonNode& node, std::string what, std::string source, std::string path,
            std::string advice)
      : node_(&node),
        what_(std::move(what)),
        source_(std::move(source)),
        path_(std::move(path)),
        advice_(std::move(advice)) {}

  const JsonNode& node() const { return *node_; }
  const std::string& source() const { return source_; }

  /// Fails unless the value is an object that has all required members and no others but the
  /// optional ones.
  void check_members(std::initializer_list<const char*> required,
                     std::initializer_list<const char*> optional) const;

  bool has(const char* key) const { return node_->find(key) != nullptr; }
  JsonValue at(const char* key) const;  ///< Fails if the member is missing: see check_members
  std::vector<JsonValue> items() const;
  std::vector<std::pair<std::string, JsonValue>> members() const;

  bool is_null() const { return node_->kind == JsonNode::Kind::kNull; }
  std::string string() const;
  bool boolean() const;
  double number() const;
  int64_t integer() const;  ///< Accepts 3.0, too
  int32_t int32(int32_t least = 0) const;
  int64_t bytes() const;  ///< An integer that is not negative
  std::vector<std::string> strings() const;
  std::vector<int32_t> ints() const;
  std::vector<JsonValue> row(size_t size) const;  ///< Items of an array of exactly `size` values

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const;
  std::string shown() const;  ///< The value in words for an error: "12", "\"us\"", "an object"

 private:
  JsonValue member(const JsonNode& node) const;

  const JsonNode* node_;
  std::string what_;  // "profile", "memory plan" or "policy"
  std::string source_;
  std::string path_;  // "block_types[1].ops[0].fwd"; empty for the whole text
  std::string advice_;
};

}  // namespace remat::detail
