// SPDX-License-Identifier: BSD-3-Clause

// Reads what the forward() of a custom autograd function did to its ctx, and repeats it.
#pragma once

#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/python_headers.h>

#include <string>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/engine/named_call.h>
#include <remat/engine/torch_compat.h>

namespace remat::python {

/// The tensors among the arguments of the forward() that Python is running, if `ctx` is its first
/// argument; else none. Throws python_error.
std::vector<at::Tensor> tensors_of_forward(PyObject* ctx);

struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;  ///< Undefined for None.
};

/// Calls ctx.save_for_backward(*named.values()) for a dict {name: Tensor or None}, and returns its
/// items. Throws ValueError for an empty name, RuntimeError for a name with a dot and for other
/// values, python_error. `where` begins the messages.
NamedTensors save_named(PyObject* ctx, PyObject* named, const std::string& where);

/// The tensors given to ctx.save_for_backward(), undefined for None.
std::vector<at::Tensor> saved_by(PyObject* ctx);

/// The result says how far autograd has saved ctx's tensors. It holds no `ctx` and needs no GIL.
SavingState saving_of(PyObject* ctx);

/// Adds to `results` which of its tensors `ctx` has marked as dirty or as not differentiable.
void add_marks(CallResults& results, PyObject* ctx);

/// Repeats the marks of `results` on `ctx`. Returns what forward() returned, as a new reference.
PyObject* load_marked(const CallResults& results, PyObject* ctx);

// How a Python ctx and its node refer to each other: up to LibTorch 2.12 the node owns its ctx;
// from 2.13 on the ctx owns its node, and a node keeps its ctx alive once Python code has seen it.

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

/// True if the ctx lets its saved tensors be read only once, an option since torch 2.11, and
/// backward has read them.
template <class Ctx>
bool has_given_saved(const Ctx& ctx) {
  if constexpr (requires { ctx.saved_tensors_accessed_and_cleared; }) {
    return ctx.saved_tensors_accessed_and_cleared;
  } else {
    return false;
  }
}

}  // namespace remat::python
