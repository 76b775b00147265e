// SPDX-License-Identifier: BSD-3-Clause

// The arguments of a Python call, apart from the tensors among them.
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

/// What a call was given: positional and keyword values in order, as Python's vectorcall has them.
struct CallArguments {
  PyObject* const* values;
  size_t positional;
  PyObject* keywords;  ///< Tuple of names, or null.

  size_t count() const;

  /// What `function` returns for them: a new reference, or null with the Python error set.
  PyObject* pass_to(PyObject* function) const;
};

/// A copy of the arguments as they were at the call, without their tensors: tensors are found in
/// tuples, lists, dicts, named tuples, structseqs and what torch.utils._pytree knows, to any depth;
/// everything else is passed again as it is. Made, used and destroyed under the GIL.
class ArgumentTree {
 public:
  /// Appends the tensors to `tensors`, in order. Throws python_error.
  ArgumentTree(const CallArguments& arguments, std::vector<at::Tensor>& tensors);
  ArgumentTree(const ArgumentTree&) = delete;
  ArgumentTree& operator=(const ArgumentTree&) = delete;
  ~ArgumentTree();

  /// Calls `function` with the arguments, `tensors` in place of those taken. Returns a new
  /// reference, or null with Python's error set.
  PyObject* call(PyObject* function, c10::ArrayRef<at::Tensor> tensors) const;

  /// The first value, new. Throws python_error.
  PyObject* build_one(c10::ArrayRef<at::Tensor> tensors) const;

  /// Name of the class of a leaf that is neither tensor nor None; empty if there is none.
  std::string type_of_other_leaf() const;

 private:
  class Taker;
  class Builder;

  enum class Kind : uint8_t {
    kLeaf,        ///< object: the argument.
    kTensor,      ///< object: its class, if that is not Tensor; extra: its attributes, or null.
    kTuple,       ///< children follow.
    kList,        ///< likewise
    kDict,        ///< object: list of keys; the values follow.
    kNamedTuple,  ///< object: class; children follow.
    kStructSeq,   ///< likewise
    kPytree,      ///< object: unflatten function; extra: context; children follow.
    kSeen,        ///< size: number of a container before it.
  };

  struct Node {
    Kind kind;
    uint32_t size = 0;
    PyObject* object = nullptr;
    PyObject* extra = nullptr;
  };

  void release() noexcept;

  c10::SmallVector<Node, 6> nodes_;  // in preorder
  size_t positional_;
  PyObject* keywords_;
  uint32_t containers_ = 0;
};

/// How strictly the result of a region is looked at.
enum class OutputRule {
  kTensorsOnly,  ///< A leaf that is no tensor is an error.
  kAnyLeaf,
};

/// Appends the tensors in `output`. Throws c10::Error that names `region` and the
/// leaf.
void take_output(PyObject* output, OutputRule rule, const std::string& region,
                 std::vector<at::Tensor>& tensors);

}  // namespace remat::python
