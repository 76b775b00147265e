// SPDX-License-Identifier: BSD-3-Clause

// Writes nested values in order, as JSON or as a pickle.
#pragma once

#include <cstdint>
#include <string_view>

namespace remat::detail {

class ValueWriter {
 public:
  virtual ~ValueWriter() = default;

  virtual void begin_dict() = 0;
  /// Writes a key of the open dict; its value must come next.
  virtual void key(std::string_view name) = 0;
  virtual void end_dict() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void number(int64_t value) = 0;
  virtual void text(std::string_view value) = 0;
  virtual void flag(bool value) = 0;

  /// As begin_list(), for a list that may be repeated. Returns false if a reference to the list of
  /// that `id` was written instead; then write neither its items nor its end.
  virtual bool begin_shared_list(uint32_t id) = 0;

  /// Call after the only top-level value.
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
