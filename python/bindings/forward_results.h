// SPDX-License-Identifier: BSD-3-Clause

// Reads what a custom function's forward() did to its ctx, and repeats it on the ctx of a replay.
#pragma once

#include <torch/csrc/autograd/python_function.h>
#include <torch/csrc/python_headers.h>

#include <string>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/engine/named_call.h>
#include <remat/engine/torch_compat.h>

namespace remat::python {

/// Returns the tensors among the arguments of the forward() that Python is running; none if its
/// first argument is not `ctx`. Throws python_error.
std::vector<at::Tensor> tensors_of_forward(PyObject* ctx);

struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;  ///< An undefined tensor stands for None.
};

/// Calls ctx.save_for_backward(*named.values()) for a dict {name: Tensor or None}, and returns the
/// dict's items. Messages begin with `where`. Throws TypeError for another object, ValueError for
/// an empty name, RuntimeError for other wrong names and values, and python_error.
NamedTensors save_named(PyObject* ctx, PyObject* named, const std::string& where);

/// The tensors that were passed to ctx.save_for_backward(), with an undefined tensor for None.
std::vector<at::Tensor> saved_by(PyObject* ctx);

/// Returns a function that says how far autograd has saved ctx's tensors. The function does not
/// hold `ctx` and needs no GIL.
SavingState saving_of(PyObject* ctx);

/// Adds to `results` which of its tensors `ctx` has marked as dirty or as not differentiable.
void add_marks(CallResults& results, PyObject* ctx);

/// Repeats the marks of `results` on `ctx`. Returns what forward() returned, as a new reference.
PyObject* load_marked(const CallResults& results, PyObject* ctx);

// Up to LibTorch 2.12, a node owns its Python ctx. From 2.13 on, the ctx owns its node, and the
// node keeps its ctx alive once Python code has seen the ctx.

/// Returns the node of `ctx`; null for a ctx that no apply() made.
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

/// True if the ctx lets its saved tensors be read only once (an option since torch 2.11), and
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
