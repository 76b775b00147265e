// SPDX-License-Identifier: BSD-3-Clause

// JSON as a stream: a tree would be many times the size of the recording.
#pragma once

#include <ostream>

#include "value_writer.h"

namespace remat::detail {

class JsonWriter final : public ValueWriter {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out) {}

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
  void begin_value();
  void quote(std::string_view text);

  std::ostream& out_;
  bool needs_comma_ = false;
};

}  // namespace remat::detail
