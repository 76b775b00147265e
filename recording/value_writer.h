// SPDX-License-Identifier: BSD-3-Clause

// Nested values, written in order: as JSON or as a pickle.
#pragma once

#include <cstdint>
#include <string_view>

namespace remat::detail {

class ValueWriter {
 public:
  virtual ~ValueWriter() = default;

  virtual void begin_dict() = 0;
  /// Of a dict: its value comes next.
  virtual void key(std::string_view name) = 0;
  virtual void end_dict() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void number(int64_t value) = 0;
  virtual void text(std::string_view value) = 0;
  virtual void flag(bool value) = 0;

  /// Like begin_list(), of a list that may come again. False: the list of that `id` stands there
  /// by reference, and nothing more is to be written of it.
  virtual bool begin_shared_list(uint32_t id) = 0;

  /// After the only value.
  virtual void finish() = 0;

  void number_at(std::string_view name, int64_t value) {
    key(name);
    number(value);
  }
  void text_at(std::string_view name, std::string_view value) {
    key(name);
    text(value);
  }
};

}  // namespace remat::detail
