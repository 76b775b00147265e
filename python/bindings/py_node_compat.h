// SPDX-License-Identifier: BSD-3-Clause

// How a Python ctx and its node refer to each other: up to LibTorch 2.12 the node owns its ctx;
// from 2.13 on the ctx owns its node, and a node keeps its ctx alive once Python code has seen it.
#pragma once

#include <torch/csrc/autograd/python_function.h>

#include <remat/tape/torch_compat.h>

namespace remat::python {

/// The node is null for a ctx that no apply() made.
inline WeakNodePtr node_of(const THPFunction& ctx) {
  return WeakNodePtr(ctx.cdata);
}

template <class Node = torch::autograd::PyNode>
const THPFunction& ctx_of(const torch::autograd::Node& node) {
  const auto& of_python = static_cast<const Node&>(node);
  PyObject* ctx = nullptr;
  if constexpr (requires { of_python.obj; }) {
    ctx = of_python.obj;
  } else {
    ctx = of_python.pyobj();
  }
  return *reinterpret_cast<const THPFunction*>(ctx);
}

/// True once a backward has read the saved tensors of a ctx that gives them only once, which exists
/// since torch 2.11.
template <class Ctx>
bool has_given_saved(const Ctx& ctx) {
  if constexpr (requires { ctx.saved_tensors_accessed_and_cleared; }) {
    return ctx.saved_tensors_accessed_and_cleared;
  } else {
    return false;
  }
}

}  // namespace remat::python
