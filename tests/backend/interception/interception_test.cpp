// SPDX-License-Identifier: BSD-3-Clause

// Intercepted ops and threads, and checks that interception leaves nothing behind.
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/ThreadLocalState.h>
#include <remat/engine/interception_bits.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/scope.h>
#include <sys/wait.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "support/same_bits.h"
#include "support/unwound.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;
using Names = std::vector<std::string>;

// Records the ops that the scopes of this thread see.
class Recorder final : public remat::Scope, remat::OpObserver {
 public:
  Recorder() : Scope(Phase::kForward, Ops::kSeen) { set_parts({.ops = this}); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
  void before_op(remat::OpCall& call, bool logged) override {
    names_.push_back(call.info().name() + (logged ? "" : " (not logged)"));
  }
  void after_op(remat::OpCall& /*call*/) override {}
  const Names& names() const { return names_; }

 private:
  Names names_;
};

void install() {
  checkpoint()([](const Tensor& x) { return x.sin(); })(torch::ones({1}).requires_grad_());
}

Names ops_of(const std::function<void()>& fn) {
  install();
  const Recorder recorder;
  fn();
  return recorder.names();
}

TEST_CASE("A leaf op is seen once, a composite one by its parts", "[backend][interception]") {
  const Tensor x = torch::rand({2, 3}).requires_grad_();
  const Tensor w = torch::rand({4, 3}).requires_grad_();
  CHECK(ops_of([&] { x.sin(); }) == Names{"aten::sin"});
  CHECK(ops_of([&] { x.matmul(w.t()); }) == Names{"aten::t", "aten::mm"});
  CHECK(ops_of([&] { torch::linear(x, w); }) == Names{"aten::t", "aten::mm"});
  CHECK(ops_of([&] { at::layer_norm(x, {3}); }) == Names{"aten::native_layer_norm"});
  CHECK(ops_of([&] { x.chunk(3, 1); }) == Names{"aten::split.Tensor"});
  CHECK(ops_of([&] { x.narrow(1, 0, 2); }) == Names{"aten::slice.Tensor"});
}

TEST_CASE("Ops are seen with gradients off, on integers, on views and in backward",
          "[backend][interception]") {
  const Tensor x = torch::rand({2, 3}).requires_grad_();
  const Tensor y = x.sin();
  CHECK(ops_of([&] {
          const at::NoGradGuard no_grad;
          x.cos();
        }) == Names{"aten::cos"});
  CHECK(ops_of([&] { torch::arange(3).add(1); }) == Names{"aten::arange", "aten::add.Scalar"});
  const Names backward = ops_of([&] { torch::autograd::grad({y}, {x}, {torch::ones({2, 3})}); });
  CHECK(std::find(backward.begin(), backward.end(), "aten::cos") != backward.end());
}

TEST_CASE("Tensors without autograd are seen below it, and give the same bits",
          "[backend][interception]") {
  const at::InferenceMode inference;
  const Tensor x = torch::rand({2, 3});
  const Tensor expected = at::layer_norm(x, {3}) + at::silu(x);
  Tensor got;
  const Names names = ops_of([&] { got = at::layer_norm(x, {3}) + at::silu(x); });
  CHECK(same_bits(got, expected));
  CHECK(std::count(names.begin(), names.end(), "aten::silu") == 1);
}

TEST_CASE("An op that is defined later is seen", "[backend][interception]") {
  install();
  torch::Library library(torch::Library::DEF, "remat_test", std::nullopt, __FILE__, __LINE__);
  library.def("triple(Tensor x) -> Tensor");
  library.impl("triple", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                         [](const Tensor& x) { return x.detach() * 3; }));
  library.def("sextuple(Tensor x) -> Tensor");
  library.impl("sextuple", torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd,
                                           [](const Tensor& x) { return x * 6; }));
  const auto call = [](const char* name, const Tensor& x) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(name, "")
        .typed<Tensor(const Tensor&)>()
        .call(x);
  };
  const Tensor x = torch::rand({3}).requires_grad_();
  CHECK(ops_of([&] { call("remat_test::triple", x); }) == Names{"remat_test::triple"});
  CHECK(ops_of([&] { call("remat_test::sextuple", x); }) == Names{"aten::mul.Scalar"});
  const Tensor y = checkpoint()([&](const Tensor& t) {
    return call("remat_test::sextuple", t).sin() + call("remat_test::triple", t);
  })(x);
  CHECK(same_bits(torch::autograd::grad({y.sum()}, {x})[0], (x * 6).cos() * 6));
}

// Multiplies all arguments. The kernel is boxed, as kernels from Python are.
void scale_boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Tensor product = torch::ones({3});
  for (size_t i = 0; i < op.schema().arguments().size(); ++i) {
    product = product * torch::jit::pop(*stack).toTensor().detach();
  }
  torch::jit::push(*stack, product);
}

TEST_CASE("An op that is taken away and defined anew with another schema is seen as it is now",
          "[backend][interception]") {
  const Tensor x = torch::rand({3}).requires_grad_();
  for (const bool two : {false, true}) {
    torch::Library library(torch::Library::DEF, "remat_anew", std::nullopt, __FILE__, __LINE__);
    library.def(two ? "scale(Tensor x, Tensor y) -> Tensor" : "scale(Tensor x) -> Tensor");
    library.impl("scale", c10::DispatchKey::CompositeExplicitAutograd,
                 torch::CppFunction::makeFromBoxedFunction<&scale_boxed>());
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("remat_anew::scale", "");
    const Tensor y = checkpoint()([&](const Tensor& t) {
      const Tensor scaled = two ? op.typed<Tensor(const Tensor&, const Tensor&)>().call(t, t)
                                : op.typed<Tensor(const Tensor&)>().call(t);
      return (t * scaled).sin();
    })(x);
    CHECK_NOTHROW(y.sum().backward());
  }
}

TEST_CASE("A copy that a user's kernel for a view op returns is the region's own",
          "[backend][interception][cpu]") {
  install();
  torch::Library library(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__);
  library.impl("t", torch::dispatch(c10::DispatchKey::CPU,
                                    [](const Tensor& x) { return x.transpose(0, 1).clone(); }));
  const auto fn = [](const Tensor& x) { return x.sin().t().exp().t().sin(); };
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& of) {
    const Tensor x = torch::arange(6, at::kFloat).view({2, 3}).requires_grad_();
    return torch::autograd::grad({of(x).sum()}, {x})[0];
  };
  const Tensor expected = gradient(fn);
  CHECK(same_bits(gradient(checkpoint()(fn)), expected));
}

TEST_CASE("Interception is off outside regions, after errors, and in user callbacks",
          "[backend][interception]") {
  CHECK_FALSE(remat::interception_is_on());
  bool in_region = false;
  bool in_pack = true;
  const remat::SavedTensorsHooks hooks{
      .pack = [&](const Tensor& t) -> std::any {
        in_pack = remat::interception_is_on();
        return t;
      },
      .unpack = [](const std::any& packed) { return std::any_cast<const Tensor&>(packed); }};
  const auto fn = [&](const Tensor& x) {
    in_region = remat::interception_is_on();
    const remat::SavedTensorsHooksGuard guard(hooks);
    const auto call = [](const Tensor& t) { return t.exp(); };
    return remat::native_op(call, "exp", remat::Policy::kSave)(x.sin());
  };
  const Tensor x = torch::rand({3}).requires_grad_();
  checkpoint()(fn)(x);
  CHECK(in_region);
  CHECK_FALSE(in_pack);
  CHECK_FALSE(remat::interception_is_on());
  const auto throws = [](const Tensor& t) -> Tensor { return t.matmul(torch::ones({7, 7})); };
  CHECK_THROWS_AS(checkpoint()(throws)(x), c10::Error);
  CHECK_FALSE(remat::interception_is_on());
  CHECK(ops_of([&] {
          checkpoint({.intercept = false})([](const Tensor& t) { return t.sin(); })(x);
        }) == Names{"aten::sin"});  // seen by the recorder around the region
}

TEST_CASE("Thread state that carries the switch to a thread without a region does no harm",
          "[backend][interception]") {
  const Tensor x = torch::rand({3}).requires_grad_();
  Tensor in_thread;
  const Tensor y = checkpoint()([&](const Tensor& t) {
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard guard(state);
      in_thread = t.detach().cos() + torch::ones({3});
    }).join();
    return t.sin();
  })(x);
  CHECK(same_bits(in_thread, x.detach().cos() + 1));
  y.sum().backward();
  CHECK(same_bits(x.grad(), x.detach().cos()));
}

// [cpu]: a child that was forked after CUDA's start cannot use CUDA.
TEST_CASE("A child forked inside a region computes without it", "[backend][interception][cpu]") {
  const Tensor x = torch::rand({3}).requires_grad_();
  int status = -1;
  checkpoint()([&](const Tensor& t) {
    const pid_t child = fork();
    if (child == 0) {
      const bool off = !remat::interception_is_on();
      const Tensor own = torch::ones({3}).requires_grad_();
      checkpoint()([](const Tensor& u) { return u.sin(); })(own).sum().backward();
      _exit(off && same_bits(own.grad(), own.detach().cos()) ? 0 : 1);
    }
    waitpid(child, &status, 0);
    return t.sin();
  })(x);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace
