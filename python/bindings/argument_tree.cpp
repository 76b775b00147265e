// SPDX-License-Identifier: BSD-3-Clause

// Separates arguments into tensors and the rest, and rebuilds them.
#include "argument_tree.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <string>
#include <utility>

#include <remat/engine/region_label.h>

#include "errors.h"
#include "owned_object.h"
#include "pytree.h"

namespace remat::python {
namespace {

/// Counts one level of nesting until the returned guard is destroyed. Throws RecursionError when
/// containers nest too deeply, as in a list that contains itself.
[[nodiscard]] auto enter_container() {
  if (Py_EnterRecursiveCall(" while a region looks for tensors")) throw python_error();
  return c10::make_scope_exit([] { Py_LeaveRecursiveCall(); });
}

}  // namespace

size_t CallArguments::count() const {
  return positional + (keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords)) : 0);
}

PyObject* CallArguments::pass_to(PyObject* function) const {
  return PyObject_Vectorcall(function, values, positional, keywords);
}

class ArgumentTree::Taker {
 public:
  Taker(ArgumentTree& tree, std::vector<at::Tensor>& tensors) : tree_(tree), tensors_(tensors) {}
  Taker(const Taker&) = delete;
  Taker& operator=(const Taker&) = delete;
  ~Taker() {
    for (PyObject* const object : kept_) Py_DECREF(object);
  }

  void take(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    if (THPVariable_Check(object)) return take_tensor(object, type);
    if (type == &PyTuple_Type) return take_tuple(Kind::kTuple, nullptr, object);
    if (type == &PyList_Type) return take_list(object);
    if (type == &PyDict_Type) return take_dict(object);
    if (PyTuple_Check(object)) {
      if (is_named_tuple(type)) return take_tuple(Kind::kNamedTuple, type, object);
      if (is_struct_sequence(type)) return take_tuple(Kind::kStructSeq, type, object);
    }
    if (PyObject* const node = find_pytree_node(object)) return take_pytree(node, object);
    add({Kind::kLeaf, 0, Py_NewRef(object)});
  }

 private:
  void add(Node node) { tree_.nodes_.push_back(node); }

  void take_tensor(PyObject* object, PyTypeObject* type) {
    tensors_.push_back(THPVariable_Unpack(object));
    Node node{Kind::kTensor};
    if (type != reinterpret_cast<PyTypeObject*>(THPVariableClass)) {
      node.object = Py_NewRef(reinterpret_cast<PyObject*>(type));
      add(node);
      tree_.nodes_.back().extra = attributes(object);
      return;
    }
    add(node);
  }

  /// Returns a copy of the object's attributes; null if it has none.
  static PyObject* attributes(PyObject* object) {
    PyObject* const dict = PyObject_GenericGetDict(object, nullptr);
    if (!dict) {
      PyErr_Clear();
      return nullptr;
    }
    PyObject* const copy = PyDict_GET_SIZE(dict) > 0 ? PyDict_Copy(dict) : nullptr;
    Py_DECREF(dict);
    return copy;
  }

  /// If the container has occurred before, adds a kSeen node and returns true.
  bool seen(PyObject* container) {
    for (const auto i : c10::irange(seen_.size())) {
      if (seen_[i] != container) continue;
      add({Kind::kSeen, static_cast<uint32_t>(i)});
      return true;
    }
    seen_.push_back(container);
    ++tree_.containers_;
    return false;
  }

  void take_tuple(Kind kind, PyTypeObject* type, PyObject* object) {
    if (seen(object)) return;
    const auto depth = enter_container();
    const Py_ssize_t size = PyTuple_GET_SIZE(object);
    add({kind, static_cast<uint32_t>(size),
         type ? Py_NewRef(reinterpret_cast<PyObject*>(type)) : nullptr});
    for (const auto i : c10::irange(size)) take(PyTuple_GET_ITEM(object, i));
  }

  void take_list(PyObject* object) {
    if (seen(object)) return;
    const auto depth = enter_container();
    add({Kind::kList, 0});
    take_items(object);
  }

  /// Takes the list's items as children of the last node. Reads the list's size at each step,
  /// because Python code that flattens an item may change the list.
  void take_items(PyObject* list) {
    const size_t parent = tree_.nodes_.size() - 1;
    Py_ssize_t i = 0;
    for (; i < PyList_GET_SIZE(list); ++i) {
      PyObject* const item = Py_NewRef(PyList_GET_ITEM(list, i));
      kept_.push_back(item);
      take(item);
    }
    tree_.nodes_[parent].size = static_cast<uint32_t>(i);
  }

  void take_dict(PyObject* object) {
    if (seen(object)) return;
    const auto depth = enter_container();
    PyObject* const keys = checked(PyDict_Keys(object));
    PyObject* const values = PyDict_Values(object);
    if (values) kept_.push_back(values);
    add({Kind::kDict, 0, keys});
    take_items(checked(values));
  }

  void take_pytree(PyObject* node, PyObject* object) {
    if (seen(object)) return;
    const auto depth = enter_container();
    auto [children, context] = flatten(node, object);
    PyObject* const list = children.release();
    kept_.push_back(list);
    add({Kind::kPytree, 0, PyObject_GetAttrString(node, "unflatten_fn"), context.release()});
    checked(tree_.nodes_.back().object);
    take_items(list);
  }

  ArgumentTree& tree_;
  std::vector<at::Tensor>& tensors_;
  c10::SmallVector<PyObject*, 4> seen_;
  c10::SmallVector<PyObject*, 4> kept_;  // owned
};

class ArgumentTree::Builder {
 public:
  Builder(const ArgumentTree& tree, c10::ArrayRef<at::Tensor> tensors)
      : tree_(tree), tensors_(tensors) {}

  /// Builds the value of the next node, and of its children. Returns a new reference.
  PyObject* build() {
    const Node& node = tree_.nodes_[next_++];
    switch (node.kind) {
      case Kind::kLeaf:
        return Py_NewRef(node.object);
      case Kind::kTensor:
        return build_tensor(node);
      case Kind::kSeen:
        return build_seen(node);
      case Kind::kList:
        return build_list(node);
      case Kind::kDict:
        return build_dict(node);
      default:
        return build_tuple(node);
    }
  }

 private:
  PyObject* build_tensor(const Node& node) {
    const at::Tensor& tensor = tensors_[next_tensor_++];
    if (!node.object) return checked(THPVariable_Wrap(tensor));
    THPObjectPtr made(
        checked(THPVariable_Wrap(tensor, reinterpret_cast<PyTypeObject*>(node.object))));
    if (!node.extra) return made.release();
    THPObjectPtr attributes(checked(PyObject_GenericGetDict(made, nullptr)));
    // `made` may be the Python object of the forward, so keep the attributes that it still has.
    if (PyDict_Merge(attributes, node.extra, /*override=*/0) < 0) throw python_error();
    return made.release();
  }

  PyObject* build_seen(const Node& node) {
    if (PyObject* const container = containers_[node.size]) return Py_NewRef(container);
    PyErr_SetString(PyExc_RecursionError, "[replay] an argument holds itself");
    throw python_error();
  }

  PyObject* build_list(const Node& node) {
    THPObjectPtr list(checked(PyList_New(0)));
    containers_.push_back(list);  // borrowed, since the rebuilt arguments own the list
    for ([[maybe_unused]] const auto i : c10::irange(node.size)) {
      THPObjectPtr item(build());
      if (PyList_Append(list, item) < 0) throw python_error();
    }
    return list.release();
  }

  PyObject* build_dict(const Node& node) {
    THPObjectPtr dict(checked(PyDict_New()));
    containers_.push_back(dict);
    for (const auto i : c10::irange(node.size)) {
      THPObjectPtr value(build());
      if (PyDict_SetItem(dict, PyList_GET_ITEM(node.object, i), value) < 0) throw python_error();
    }
    return dict.release();
  }

  PyObject* build_tuple(const Node& node) {
    const size_t number = containers_.size();
    containers_.push_back(nullptr);
    THPObjectPtr tuple(checked(PyTuple_New(node.size)));
    for (const auto i : c10::irange(node.size)) PyTuple_SET_ITEM(tuple.get(), i, build());
    PyObject* const made = node.kind == Kind::kTuple ? tuple.release() : convert(node, tuple);
    containers_[number] = made;
    return made;
  }

  static PyObject* convert(const Node& node, PyObject* tuple) {
    if (node.kind == Kind::kNamedTuple)
      return checked(PyObject_CallMethod(node.object, "_make", "(O)", tuple));
    if (node.kind == Kind::kStructSeq) return checked(PyObject_CallOneArg(node.object, tuple));
    THPObjectPtr children(checked(PySequence_List(tuple)));
    return checked(PyObject_CallFunctionObjArgs(node.object, children.get(), node.extra, nullptr));
  }

  const ArgumentTree& tree_;
  c10::ArrayRef<at::Tensor> tensors_;
  size_t next_ = 0;
  size_t next_tensor_ = 0;
  c10::SmallVector<PyObject*, 4> containers_;
};

ArgumentTree::ArgumentTree(const CallArguments& arguments, std::vector<at::Tensor>& tensors)
    : positional_(arguments.positional), keywords_(Py_XNewRef(arguments.keywords)) {
  try {
    Taker taker(*this, tensors);
    for (const auto i : c10::irange(arguments.count())) taker.take(arguments.values[i]);
  } catch (...) {
    release();
    throw;
  }
}

ArgumentTree::~ArgumentTree() {
  release();
}

void ArgumentTree::release() noexcept {
  const ErrorAside error;
  for (const Node& node : nodes_) {
    Py_XDECREF(node.object);
    Py_XDECREF(node.extra);
  }
  nodes_.clear();
  Py_CLEAR(keywords_);
}

PyObject* ArgumentTree::call(PyObject* function, c10::ArrayRef<at::Tensor> tensors) const {
  c10::SmallVector<PyObject*, 8> values;
  const auto release_values = c10::make_scope_exit([&] {
    const ErrorAside error;
    for (PyObject* const value : values) Py_DECREF(value);
  });
  const size_t count =
      positional_ + (keywords_ ? static_cast<size_t>(PyTuple_GET_SIZE(keywords_)) : 0);
  try {
    Builder builder(*this, tensors);
    for ([[maybe_unused]] const auto i : c10::irange(count)) values.push_back(builder.build());
  } catch (python_error&) {
    return nullptr;
  }
  return PyObject_Vectorcall(function, values.data(), positional_, keywords_);
}

PyObject* ArgumentTree::build_one(c10::ArrayRef<at::Tensor> tensors) const {
  return Builder(*this, tensors).build();
}

std::string ArgumentTree::type_of_other_leaf() const {
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kLeaf && node.object != Py_None) return type_of(node.object);
  }
  return "";
}

namespace {

class OutputWalk {
 public:
  OutputWalk(OutputRule rule, const std::string& region, std::vector<at::Tensor>& tensors)
      : rule_(rule), region_(region), tensors_(tensors) {}

  void walk(PyObject* object) {
    if (THPVariable_Check(object)) return tensors_.push_back(THPVariable_Unpack(object));
    if (PyTuple_Check(object)) {
      return walk_children(PyTuple_GET_SIZE(object),
                           [&](Py_ssize_t i) { return PyTuple_GET_ITEM(object, i); });
    }
    if (PyList_Check(object)) {
      return walk_children(PyList_GET_SIZE(object),
                           [&](Py_ssize_t i) { return PyList_GET_ITEM(object, i); });
    }
    if (PyDict_Check(object)) return walk_dict(object);
    if (PyObject* const node = find_pytree_node(object)) return walk_pytree(node, object);
    if (rule_ == OutputRule::kTensorsOnly) reject(object);
  }

 private:
  template <class Item>
  void walk_children(Py_ssize_t size, Item&& item) {
    const auto depth = enter_container();
    for (const auto i : c10::irange(size)) {
      path_.push_back({nullptr, i});
      walk(item(i));
      path_.pop_back();
    }
  }

  void walk_dict(PyObject* dict) {
    const auto depth = enter_container();
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    while (PyDict_Next(dict, &position, &key, &value)) {
      path_.push_back({key, 0});
      walk(value);
      path_.pop_back();
    }
  }

  void walk_pytree(PyObject* node, PyObject* object) {
    const auto [children, context] = flatten(node, object);
    PyObject* const list = const_cast<PyObject*>(children.get());
    walk_children(PyList_GET_SIZE(list), [&](Py_ssize_t i) { return PyList_GET_ITEM(list, i); });
  }

  [[noreturn]] void reject(PyObject* object) const {
    std::string path;
    for (const auto& [key, index] : path_) {
      THPObjectPtr shown(key ? PyObject_Repr(key) : PyUnicode_FromFormat("%zd", index));
      const char* const text = shown ? PyUnicode_AsUTF8(shown) : nullptr;
      path.append("[").append(text ? text : "?").append("]");
      PyErr_Clear();
    }
    TORCH_CHECK(
        false, "[checkpoint] ", region_label(region_), ", output", path,
        ": fn must return a Tensor, or a nesting of tuples, lists and dicts of Tensors; got ",
        type_of(object),
        ". Return other values another way, or call torch_checkpoint, which lets them "
        "pass.");
  }

  const OutputRule rule_;
  const std::string& region_;
  std::vector<at::Tensor>& tensors_;
  c10::SmallVector<std::pair<PyObject*, Py_ssize_t>, 4> path_;  // (key, 0) or (null, index)
};

}  // namespace

void take_output(PyObject* output, OutputRule rule, const std::string& region,
                 std::vector<at::Tensor>& tensors) {
  OutputWalk(rule, region, tensors).walk(output);
}

}  // namespace remat::python
