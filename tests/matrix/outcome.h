// SPDX-License-Identifier: BSD-3-Clause

// The bits of everything that a run of a program left behind.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "matrix/models.h"

namespace remat::matrix {

class Outcome {
 public:
  /// Copies `value`, which may be undefined.
  void add(std::string name, const at::Tensor& value);

  /// Adds each of `values` as "name[i]".
  void add_all(const std::string& name, const Tensors& values);

  /// Adds the .grad of each of `leaves`.
  void add_grads(const std::string& name, const Tensors& leaves);

  /// Adds the default generator's state and the process-wide settings that regions touch.
  void add_process_state();

  void set_error(const std::exception& error);

  /// Type and first sentence of the error that ended the run, empty if there was none.
  const std::string& error() const { return error_; }

  /// Names everything that differs in `other`, in value, dtype, shape or error; empty if they are
  /// bitwise equal.
  std::string differences(const Outcome& other) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> values_;
  std::string error_;
};

}  // namespace remat::matrix
