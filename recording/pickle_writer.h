// SPDX-License-Identifier: BSD-3-Clause

// The part of the pickle format that a snapshot needs. The only C++ library that writes pickles is
// LibTorch, which this module does without. PyTorch's viewer knows only some opcodes, so only those
// are used, and items are appended to lists one by one, since many at once are too many for it.
// https://docs.python.org/3/library/pickle.html, and its opcodes in Lib/pickletools.py
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace remat::detail {

/// Writes protocol 2. Repeated texts become references.
class PickleWriter {
 public:
  explicit PickleWriter(std::ostream& out);

  void begin_dict();
  /// Writes a key of the open dict; its value must come next.
  void key(std::string_view name);
  void end_dict();
  void begin_list();
  void end_list();
  void number(int64_t value);
  void text(std::string_view value);
  void flag(bool value);

  /// Begins a list that may be repeated. Returns false if a reference to the list of
  /// that `id` was written instead; then write neither its items nor its end.
  bool begin_shared_list(uint32_t id);

  /// Call after the only top-level value.
  void finish();

  void number_at(std::string_view name, int64_t value) {
    key(name);
    number(value);
  }
  void text_at(std::string_view name, std::string_view value) {
    key(name);
    text(value);
  }

 private:
  void write_text(std::string_view value);
  void little_endian(uint64_t value, int bytes);
  void put(uint32_t memo);
  void get(uint32_t memo);
  void value_is_written();

  std::ostream& out_;
  std::vector<bool> is_list_;  // for each open list or dict, the innermost last
  std::map<std::string, uint32_t, std::less<>> texts_;
  std::unordered_map<uint32_t, uint32_t> lists_;
  uint32_t next_memo_ = 0;
};

}  // namespace remat::detail
