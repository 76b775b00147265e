// SPDX-License-Identifier: BSD-3-Clause

// Runs graphs that a compiler turned into machine code, each as one op.
//
// Note [Compiled graphs]: the code that inductor generates for a graph allocates memory without the
// dispatcher and writes the memory in kernels of its own. If a region intercepted the ops of this
// code, it would see tensors that no op made, and miss writes. So in a region one op runs the whole
// graph, and the ops in it are not intercepted:
//
//   remat::compiled_graph(PyObject graph, str code, Tensor[] read, Tensor(a!)[] written,
//                         Scalar[] numbers) -> (Tensor[], Scalar[])
//
// Regions log this op, tapes replay it, and policies may SAVE it, like any other op. The op calls
// `graph` with `read`, `written` and `numbers`; a tape with the op keeps `graph` alive. `code`
// identifies the computation: it stays the same when the graph is compiled again, and a replay with
// another `code` is a mismatch.
#include "bindings.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <remat/engine/interception_bits.h>
#include <remat/engine/scope.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

namespace py = pybind11;

using Tensors = std::vector<at::Tensor>;
using Number = std::variant<int64_t, double>;
using Results = std::tuple<Tensors, std::vector<Number>>;

/// Holds a Python object on the dispatcher's stack.
class Holder : public c10::ivalue::PyObjectHolder {
 public:
  explicit Holder(PyObject* object) : object_(object) {}

  PyObject* getPyObject() override { return object_.get(); }
  c10::InferredType tryToInferType() override {
    return c10::InferredType(c10::TypePtr(c10::PyObjectType::get()));
  }
  c10::IValue toIValue(const c10::TypePtr& /*type*/, std::optional<int32_t> /*N*/) override {
    TORCH_INTERNAL_ASSERT(false, "a compiled graph is no value of TorchScript");
  }
  std::string toStr() override { return "compiled graph"; }
  Tensors extractTensors() override { return {}; }

 private:
  OwnedObject object_;
};

c10::FunctionSchema schema() {
  const auto tensors = c10::ListType::ofTensors();
  const auto numbers = c10::ListType::create(c10::NumberType::get());
  const std::set<std::string> memory = {"alias::a"};
  const c10::AliasInfo written(/*is_write=*/true, memory, memory);
  return {"remat::compiled_graph",
          "",
          {c10::Argument("graph", c10::PyObjectType::get()),
           c10::Argument("code", c10::StringType::get()), c10::Argument("read", tensors),
           c10::Argument("written", tensors, tensors, std::nullopt, std::nullopt,
                         /*kwarg_only=*/false, written),
           c10::Argument("numbers", numbers)},
          {c10::Argument("", tensors), c10::Argument("", numbers)}};
}

c10::List<at::Scalar> to_scalars(const std::vector<Number>& numbers) {
  c10::List<at::Scalar> scalars;
  for (const Number& number : numbers)
    scalars.push_back(std::visit([](auto value) { return at::Scalar(value); }, number));
  return scalars;
}

std::vector<Number> to_numbers(const c10::List<at::Scalar>& scalars) {
  std::vector<Number> numbers;
  for (const at::Scalar& scalar : scalars)
    numbers.push_back(scalar.isFloatingPoint() ? Number(scalar.toDouble())
                                               : Number(scalar.toLong()));
  return numbers;
}

Results call_graph(PyObject* graph, const c10::List<at::Tensor>& read,
                   const c10::List<at::Tensor>& written, const c10::List<at::Scalar>& numbers) {
  const py::gil_scoped_acquire gil;
  const py::object lists[] = {py::cast(read.vec()), py::cast(written.vec()),
                              py::cast(to_numbers(numbers))};
  const auto made = py::reinterpret_steal<py::object>(
      PyObject_CallFunctionObjArgs(graph, lists[0].ptr(), lists[1].ptr(), lists[2].ptr(), nullptr));
  if (!made) throw_python_error();
  return made.cast<Results>();
}

// Keys excluded while the op is called, so that dispatch modes see the graph's ops but not the op.
constexpr c10::DispatchKeySet kModes({c10::DispatchKey::Python,
                                      c10::DispatchKey::PythonTLSSnapshot});

c10::impl::LocalDispatchKeySet with_modes(c10::impl::LocalDispatchKeySet keys) {
  keys.excluded_ = keys.excluded_ - kModes;
  return keys;
}

void run_compiled_graph(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const InterceptionOff unseen;
  const c10::impl::ForceDispatchKeyGuard modes(with_modes(c10::impl::tls_local_dispatch_key_set()));
  const auto numbers = torch::jit::pop(stack).to<c10::List<at::Scalar>>();
  const auto written = torch::jit::pop(stack).toTensorList();
  const auto read = torch::jit::pop(stack).toTensorList();
  torch::jit::pop(stack);  // code
  const auto graph = torch::jit::pop(stack).toPyObjectHolder();
  Results made = call_graph(graph->getPyObject(), read, written, numbers);
  torch::jit::push(stack, std::move(std::get<0>(made)), to_scalars(std::get<1>(made)));
}

/// Skips autograd's fallback. The graph has an autograd function of its own, so autograd has
/// nothing to record for the op, and the op's results may share memory.
void pass_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Registered for each device, because the key Autograd would include the interception kernel's key.
constexpr c10::DispatchKey kAutogradKeys[] = {
    c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA, c10::DispatchKey::AutogradXPU,
    c10::DispatchKey::AutogradMPS};

/// Registers the op at its first use, so that loading the module registers nothing.
void register_op() {
  // Never freed, since the destructor would unregister the op.
  static torch::Library* registered = nullptr;
  if (registered) return;
  registered = new torch::Library(torch::Library::FRAGMENT, "remat", std::nullopt, __FILE__,
                                  static_cast<uint32_t>(__LINE__));
  torch::Library& library = *registered;
  library.def(schema(), {at::Tag::nondeterministic_seeded});
  library.impl("compiled_graph",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                               torch::CppFunction::makeFromBoxedFunction<&run_compiled_graph>()));
  for (const c10::DispatchKey key : kAutogradKeys)
    library.impl("compiled_graph",
                 torch::dispatch(key, torch::CppFunction::makeFromBoxedFunction<&pass_autograd>()));
}

Results call_op(const py::object& graph, std::string code, Tensors read, Tensors written,
                const std::vector<Number>& numbers) {
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("remat::compiled_graph", "");
  torch::jit::Stack stack;
  torch::jit::push(
      stack,
      c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<Holder>(graph.ptr())),
      std::move(code), std::move(read), std::move(written), to_scalars(numbers));
  const py::gil_scoped_release no_gil;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(kModes);
  op.callBoxed(stack);
  return {stack[0].toTensorVector(), to_numbers(stack[1].to<c10::List<at::Scalar>>())};
}

bool ops_are_seen() {
  return interception_is_on() && Scope::current() != nullptr;
}

}  // namespace

void add_compiled_graph(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_register_compiled_graph", torch::wrap_pybind_function(register_op));
  m.def("_ops_are_seen", &ops_are_seen);
  m.def("_call_compiled_graph", torch::wrap_pybind_function(call_op));
}

}  // namespace remat::python
