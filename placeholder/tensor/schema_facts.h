// SPDX-License-Identifier: BSD-3-Clause

// What the schema of an op says about aliases and arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace remat {

/// "aten::add.Tensor"
std::string full_name(const c10::OperatorHandle& op);

/// A result is an alias of an argument that the op does not write.
bool returns_view(const c10::FunctionSchema& schema);

/// Every result is an argument that the op writes, and at least one argument is written. An op
/// without results counts.
bool returns_only_written(const c10::FunctionSchema& schema);

/// Has an argument that says on which device the result is made.
bool chooses_device(const c10::FunctionSchema& schema);

}  // namespace remat
