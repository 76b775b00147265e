// SPDX-License-Identifier: BSD-3-Clause

#include "json_writer.h"

#include <nlohmann/json.hpp>

namespace remat::detail {

/// Begins a new line, because people read and compare these files by line.
void JsonWriter::begin_dict() {
  if (needs_comma_) out_ << ",\n";
  out_ << "{";
  needs_comma_ = false;
}

void JsonWriter::key(std::string_view name) {
  begin_value();
  quote(name);
  out_ << ": ";
  needs_comma_ = false;
}

void JsonWriter::end_dict() {
  out_ << "}";
  needs_comma_ = true;
}

void JsonWriter::begin_list() {
  begin_value();
  out_ << "[";
  needs_comma_ = false;
}

void JsonWriter::end_list() {
  out_ << "]";
  needs_comma_ = true;
}

void JsonWriter::number(int64_t value) {
  begin_value();
  out_ << value;
}

void JsonWriter::text(std::string_view value) {
  begin_value();
  quote(value);
}

void JsonWriter::flag(bool value) {
  begin_value();
  out_ << (value ? "true" : "false");
}

bool JsonWriter::begin_shared_list(uint32_t /*id*/) {
  begin_list();
  return true;
}

void JsonWriter::finish() {
  out_ << "\n";
}

void JsonWriter::begin_value() {
  if (needs_comma_) out_ << ", ";
  needs_comma_ = true;
}

void JsonWriter::quote(std::string_view text) {
  out_ << nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace remat::detail
