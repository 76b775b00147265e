// SPDX-License-Identifier: BSD-3-Clause

// The part of the pickle format that a snapshot needs. The only C++ library that writes pickles is
// LibTorch, which this module does without. PyTorch's viewer knows only some opcodes, so only those
// are used, and items are appended to lists one by one, since many at once are too many for it.
// https://docs.python.org/3/library/pickle.html, and its opcodes in Lib/pickletools.py
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "value_writer.h"

namespace remat::detail {

/// Writes protocol 2. Repeated texts become references.
class PickleWriter final : public ValueWriter {
 public:
  explicit PickleWriter(std::ostream& out);

  void begin_dict() override;
  void key(std::string_view name) override;
  void end_dict() override;
  void begin_list() override;
  void end_list() override;
  void number(int64_t value) override;
  void text(std::string_view value) override;
  void flag(bool value) override;
  bool begin_shared_list(uint32_t id) override;
  void finish() override;

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
