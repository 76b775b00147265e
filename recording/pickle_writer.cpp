// SPDX-License-Identifier: BSD-3-Clause

#include "pickle_writer.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace remat::detail {
namespace {

// Pickle opcodes.
constexpr char kProtocol = '\x80';
constexpr char kStop = '.';
constexpr char kEmptyDict = '}';
constexpr char kSetItem = 's';
constexpr char kEmptyList = ']';
constexpr char kAppend = 'a';
constexpr char kByte = 'K';
constexpr char kTwoBytes = 'M';
constexpr char kFourBytes = 'J';  // signed
constexpr char kLong = '\x8a';
constexpr char kUnicode = 'X';
constexpr char kTrue = '\x88';
constexpr char kFalse = '\x89';
constexpr char kPut = 'q';
constexpr char kLongPut = 'r';
constexpr char kGet = 'h';
constexpr char kLongGet = 'j';

/// Replaces each byte of `text` that is not part of valid UTF-8 by U+FFFD: names of threads and
/// files may be any bytes.
std::string utf8_of(std::string_view text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

PickleWriter::PickleWriter(std::ostream& out) : out_(out) {
  out_ << kProtocol << '\x02';
}

void PickleWriter::begin_dict() {
  out_ << kEmptyDict;
  is_list_.push_back(false);
}

void PickleWriter::key(std::string_view name) {
  write_text(name);
}

void PickleWriter::end_dict() {
  is_list_.pop_back();
  value_is_written();
}

void PickleWriter::begin_list() {
  out_ << kEmptyList;
  is_list_.push_back(true);
}

bool PickleWriter::begin_shared_list(uint32_t id) {
  if (const auto known = lists_.find(id); known != lists_.end()) {
    get(known->second);
    value_is_written();
    return false;
  }
  begin_list();
  lists_.emplace(id, next_memo_);
  put(next_memo_++);
  return true;
}

void PickleWriter::end_list() {
  is_list_.pop_back();
  value_is_written();
}

void PickleWriter::number(int64_t value) {
  if (value >= 0 && value <= 0xff) {
    out_ << kByte;
    little_endian(static_cast<uint64_t>(value), 1);
  } else if (value >= 0 && value <= 0xffff) {
    out_ << kTwoBytes;
    little_endian(static_cast<uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<int32_t>::min() &&
             value <= std::numeric_limits<int32_t>::max()) {
    out_ << kFourBytes;
    little_endian(static_cast<uint64_t>(value), 4);
  } else {
    out_ << kLong << '\x08';
    little_endian(static_cast<uint64_t>(value), 8);
  }
  value_is_written();
}

void PickleWriter::text(std::string_view value) {
  write_text(value);
  value_is_written();
}

void PickleWriter::flag(bool value) {
  out_ << (value ? kTrue : kFalse);
  value_is_written();
}

void PickleWriter::finish() {
  out_ << kStop;
}

void PickleWriter::write_text(std::string_view value) {
  if (const auto known = texts_.find(value); known != texts_.end()) {
    get(known->second);
    return;
  }
  const std::string valid = utf8_of(value);
  out_ << kUnicode;
  little_endian(valid.size(), 4);
  out_ << valid;
  texts_.emplace(value, next_memo_);
  put(next_memo_++);
}

void PickleWriter::little_endian(uint64_t value, int bytes) {
  for (int byte = 0; byte < bytes; ++byte) out_ << static_cast<char>(value >> (8 * byte));
}

void PickleWriter::put(uint32_t memo) {
  out_ << (memo <= 0xff ? kPut : kLongPut);
  little_endian(memo, memo <= 0xff ? 1 : 4);
}

void PickleWriter::get(uint32_t memo) {
  out_ << (memo <= 0xff ? kGet : kLongGet);
  little_endian(memo, memo <= 0xff ? 1 : 4);
}

/// Appends an item to the open list, or sets the last key of the open dict.
void PickleWriter::value_is_written() {
  if (!is_list_.empty()) out_ << (is_list_.back() ? kAppend : kSetItem);
}

}  // namespace remat::detail
