// SPDX-License-Identifier: BSD-3-Clause

// Separates the tensors among the arguments of a Python call from the rest.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace remat::python {

/// The positional and keyword values of a call in order, in vectorcall's form.
struct CallArguments {
  PyObject* const* values;
  size_t positional;
  PyObject* keywords;  ///< Tuple of names, or null.

  size_t count() const;

  /// Returns function(arguments), as a new reference, or null with Python's error set.
  PyObject* pass_to(PyObject* function) const;
};

/// A copy of the arguments as they were at the call, without their tensors. Tensors are found in
/// tuples, lists, dicts, named tuples, structseqs and nodes of torch.utils._pytree, to any depth;
/// everything else is passed on as it is. Construct, use and destroy under the GIL.
class ArgumentTree {
 public:
  /// Appends the tensors to `tensors`, in order. Throws python_error.
  ArgumentTree(const CallArguments& arguments, std::vector<at::Tensor>& tensors);
  ArgumentTree(const ArgumentTree&) = delete;
  ArgumentTree& operator=(const ArgumentTree&) = delete;
  ~ArgumentTree();

  /// Calls `function` with the copied arguments, and with `tensors` where the constructor found
  /// tensors. Returns a new reference, or null with Python's error set.
  PyObject* call(PyObject* function, c10::ArrayRef<at::Tensor> tensors) const;

  /// Returns the first argument, rebuilt with `tensors`, as a new reference. Throws python_error.
  PyObject* build_one(c10::ArrayRef<at::Tensor> tensors) const;

  /// Class name of the first leaf that is neither a tensor nor None; empty without such a leaf.
  std::string type_of_other_leaf() const;

 private:
  class Taker;
  class Builder;

  enum class Kind : uint8_t {
    kLeaf,        ///< Node::object: the argument.
    kTensor,      ///< object: the subclass, null for Tensor; extra: dict of attributes, or null.
    kTuple,       ///< The children follow.
    kList,        ///< The children follow.
    kDict,        ///< object: list of keys; the values follow.
    kNamedTuple,  ///< object: class; children follow.
    kStructSeq,   ///< object: class; children follow.
    kPytree,      ///< object: unflatten function; extra: context; children follow.
    kSeen,        ///< A container that already occurred; size: its preorder index.
  };

  struct Node {
    Kind kind;
    uint32_t size = 0;
    PyObject* object = nullptr;
    PyObject* extra = nullptr;
  };

  void release() noexcept;

  c10::SmallVector<Node, 6> nodes_;  // in preorder; containers are numbered in that order, too
  size_t positional_;
  PyObject* keywords_;
  uint32_t containers_ = 0;
};

/// The leaves that the result of a region may have.
enum class OutputRule {
  kTensorsOnly,  ///< A leaf that is no tensor is an error.
  kAnyLeaf,
};

/// Appends the tensors in `output`. Throws python_error and, for a leaf that `rule` forbids,
/// c10::Error that names `region`, and the leaf's path and class.
void take_output(PyObject* output, OutputRule rule, const std::string& region,
                 std::vector<at::Tensor>& tensors);

}  // namespace remat::python
