// SPDX-License-Identifier: BSD-3-Clause

// Ops that a policy turns into SAVE calls: run once, bitwise equal, and kept like the same named
// calls.
#include <torch/torch.h>

#include <string>
#include <vector>

#include <remat/engine/scope.h>
#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"
#include "support/named_step.h"

namespace remat {
namespace {

int runs = 0;

/// exp(x), an op with a derivative as libraries define them. Its runs are counted.
struct CountedExp : torch::autograd::Function<CountedExp> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("remat_policy_test::exp", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    const at::Tensor y = op.call(x);
    context->save_for_backward({y});
    return y;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          const std::vector<at::Tensor>& grads) {
    return {grads[0] * context->get_saved_variables()[0]};
  }
};

at::Tensor counted_exp_kernel(const at::Tensor& x) {
  ++runs;
  return x.exp();
}

/// An op that is composed of other ops.
at::Tensor counted_twice(const at::Tensor& x);

TORCH_LIBRARY(remat_policy_test, library) {
  library.def("exp(Tensor x) -> Tensor");
  library.def("twice(Tensor x) -> Tensor");
  library.impl("exp", c10::DispatchKey::CPU, counted_exp_kernel);
  library.impl("exp", c10::DispatchKey::CUDA, counted_exp_kernel);
  library.impl("exp", c10::DispatchKey::Autograd,
               [](const at::Tensor& x) { return CountedExp::apply(x); });
  library.impl("twice", c10::DispatchKey::CompositeImplicitAutograd, counted_twice);
}

at::Tensor call_op(const char* name, const at::Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<at::Tensor(const at::Tensor&)>()
      .call(x);
}

at::Tensor counted_exp(const at::Tensor& x) {
  return call_op("remat_policy_test::exp", x);
}

at::Tensor counted_twice(const at::Tensor& x) {
  return counted_exp(counted_exp(x.sin()).tanh());
}

int runs_of(const TensorFn& fn, const CheckpointOptions& options) {
  const Tensors expected = step(fn);
  runs = 0;
  check_same(step(checkpoint(options)(fn)), expected);
  return runs;
}

CheckpointOptions with(PolicyTable table) {
  return {.name = "r", .policy = make_policy(std::move(table))};
}

std::vector<std::string> kept_names() {
  std::vector<std::string> names;
  for (const RegionMemory& region : memory_report().regions) {
    for (const MemoryRow& row : region.rows) names.push_back(row.name);
  }
  return names;
}

}  // namespace

TEST_CASE("An op that a rule SAVEs runs once", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) { return counted_exp(x.sin()).tanh().exp(); };
  CHECK(runs_of(fn, {.name = "r"}) == 2);
  CHECK(runs_of(fn, with(PolicyTable().op("remat_policy_test::exp", Policy::kSave))) == 1);
  CHECK(runs_of(fn, with(PolicyTable().op("remat_policy_test::*", Policy::kSave))) == 1);
  CHECK(runs_of(fn, with(PolicyTable()
                             .op("remat_policy_test::exp", Policy::kRecompute)
                             .op("remat_policy_test::*", Policy::kSave))) == 2);
}

TEST_CASE("A composite op is SAVEd whole or by its parts", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) {
    return call_op("remat_policy_test::twice", x.sin()).tanh().exp();
  };
  CHECK(runs_of(fn, {.name = "r"}) == 4);
  CHECK(runs_of(fn, with(PolicyTable().op("remat_policy_test::twice", Policy::kSave))) == 2);
  CHECK(runs_of(fn, with(PolicyTable().op("remat_policy_test::exp", Policy::kSave))) == 2);
}

TEST_CASE("A rule may name one op of many", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const auto layer = [](const char* name, const at::Tensor& t) {
      const NameScope scope(name);
      return counted_exp(counted_exp(t.sin()).sin());
    };
    return layer("b", layer("a", x).tanh()).tanh().exp();
  };
  CHECK(runs_of(fn, {.name = "r"}) == 8);
  const auto one = PolicyTable().call("a/remat_policy_test::exp#1", Policy::kSave);
  CHECK(runs_of(fn, with(one)) == 7);
  const auto layer = PolicyTable().call("b/remat_policy_test::*", Policy::kSave);
  CHECK(runs_of(fn, with(layer)) == 6);
  const auto none = PolicyTable().call("c/remat_policy_test::*", Policy::kSave);
  CHECK(runs_of(fn, with(none)) == 8);
}

TEST_CASE("A rule may change what the code says of a call", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) {
    return recompute("work", counted_exp)(x.sin()).tanh().exp();
  };
  CHECK(runs_of(fn, {.name = "r"}) == 2);
  CHECK(runs_of(fn, with(PolicyTable().call("wo?k", Policy::kSave))) == 1);
  const TensorFn saved = [](const at::Tensor& x) {
    return save("work", counted_exp)(x.sin()).tanh().exp();
  };
  CHECK(runs_of(saved, {.name = "r"}) == 1);
  CHECK(runs_of(saved, with(PolicyTable().call("work", Policy::kRecompute))) == 2);
}

TEST_CASE("A function decides by arguments, and between calls and ops", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor row = counted_exp(x[0].sin());
    return counted_exp((x + row).sin()).tanh().exp();
  };
  std::vector<std::string> slots;
  size_t recomputed = 0;
  const PolicyFunction wide = [&](const PolicyQuery& query) -> std::optional<Policy> {
    CHECK(Scope::current() == nullptr);
    if (query.op.info().name() != "remat_policy_test::exp") return std::nullopt;
    recomputed += query.is_recompute;
    if (!query.is_recompute) slots.emplace_back(query.call);
    return query.op.argument(0).toTensor().dim() == 2 ? Policy::kSave : Policy::kRecompute;
  };
  CHECK(runs_of(fn, {.name = "r", .policy = make_policy({}, wide)}) == 3);
  CHECK(slots == std::vector<std::string>{"remat_policy_test::exp#0", "remat_policy_test::exp#1"});
  CHECK(recomputed == 2);
  const auto rules = PolicyTable().call("remat_policy_test::exp#0", Policy::kSave);
  CHECK(runs_of(fn, {.name = "r", .policy = make_policy(rules, wide)}) == 2);
}

TEST_CASE("A function is asked before the rules for ops", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) { return counted_exp(x.sin()).tanh().exp(); };
  const PolicyFunction saves = [](const PolicyQuery& query) -> std::optional<Policy> {
    if (query.op.info().name() != "remat_policy_test::exp") return std::nullopt;
    return Policy::kSave;
  };
  const auto rules = PolicyTable().op("*", Policy::kRecompute);
  CHECK(runs_of(fn, {.name = "r", .policy = make_policy(rules, saves)}) == 1);
}

TEST_CASE("An op that changes a tensor's shape in place runs again, whatever the rules say",
          "[backend][policy]") {
  check_as_plain(
      [](const at::Tensor& x) {
        at::Tensor y = x.sin();
        y.t_();
        y.unsqueeze_(0);
        return y.exp().sum(1).cos();
      },
      {}, with(PolicyTable().op("aten::t_", Policy::kSave).op("aten::unsqueeze_", Policy::kSave)));
}

TEST_CASE("A function that changes its mind is found out", "[backend][policy]") {
  const PolicyFunction fickle = [](const PolicyQuery& query) -> std::optional<Policy> {
    if (query.op.info().name() != "aten::exp") return std::nullopt;
    return query.is_recompute ? Policy::kRecompute : Policy::kSave;
  };
  const auto fn = [](const at::Tensor& x) { return x.sin().exp().tanh().exp(); };
  CHECK_THAT(error_text([&] {
               const CheckpointOptions options{.name = "r", .policy = make_policy({}, fickle)};
               checkpoint(options)(fn)(step_input()).sum().backward();
             }),
             ContainsSubstring("region 'r'") && ContainsSubstring("call 'aten::exp#0' (SAVE)") &&
                 ContainsSubstring("as in the forward, got aten::exp"));
}

TEST_CASE("Every preset gives the bits of the plain run", "[backend][policy]") {
  const at::Tensor w = torch::linspace(-1, 1, 64).view({8, 8}).requires_grad_();
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor h = torch::gelu(torch::layer_norm(torch::linear(x, w), {8}));
    auto [best, index] = h.topk(3, 1);
    const auto parts = torch::dropout(h, 0.5, true).split(4, 1);
    at::Tensor y = (parts[0].matmul(parts[1].t()) + best.sum()).clone();
    y.mul_(1.5).select(0, 1).add_(index.sum());
    if (y.detach().abs().max().item<float>() > 0) y = y.softmax(-1);
    return y.matmul(x).exp();
  };
  for (const char* name :
       {"save_matmuls", "save_compute_intensive", "recompute_pointwise", "safe_defaults"}) {
    INFO(name);
    const auto seeded = [&](const TensorFn& f) {
      torch::manual_seed(3);
      return step(f, {w});
    };
    check_same(seeded(checkpoint(with(preset(name)))(fn)), seeded(fn));
    const auto nested = checkpoint({.name = "outer"})(
        [&](const at::Tensor& x) { return checkpoint(with(preset(name)))(fn)(x.sin()).tanh(); });
    check_same(seeded(nested), seeded([&](const at::Tensor& x) { return fn(x.sin()).tanh(); }));
  }
}

TEST_CASE("An op keeps what the same named call keeps", "[backend][policy]") {
  const at::Tensor w = torch::rand({64, 64}).requires_grad_();
  const auto bytes = [&](const TensorFn& fn, const CheckpointOptions& options) {
    const at::Tensor x = torch::rand({64, 64}).requires_grad_();
    const MemoryMeter meter;
    const at::Tensor y = checkpoint(options)(fn)(x);
    return meter.current_bytes(default_device());
  };
  const auto mm = [&](const at::Tensor& t) { return t.mm(w); };
  const TensorFn named = [&](const at::Tensor& x) {
    return save("b", mm)(save("a", mm)(x.sin()).tanh().exp()).sin().sum();
  };
  const TensorFn bare = [&](const at::Tensor& x) {
    return mm(mm(x.sin()).tanh().exp()).sin().sum();
  };
  const CheckpointOptions plain{.name = "r"};
  CHECK(bytes(bare, with(save_matmuls())) == bytes(named, plain));
  CHECK(bytes(bare, with(save_matmuls())) > bytes(bare, plain));
}

TEST_CASE("Slots of ops have the names of their scopes, and reports show them",
          "[backend][policy]") {
  const auto fn = [](const at::Tensor& x) {
    const at::Tensor first = x.sin().exp().tanh();
    const NameScope scope("block");
    return first.exp().sin().exp().tanh();
  };
  const CheckpointOptions options = with(PolicyTable().op("aten::exp", Policy::kSave));
  const at::Tensor y = checkpoint(options)(fn)(step_input());
  CHECK(kept_names() == std::vector<std::string>{"argument 0", "aten::exp#0: saved.0 (result)",
                                                 "block/aten::exp#0: saved.0 (result)",
                                                 "block/aten::exp#1: saved.0 (result)",
                                                 "aten::exp#0: result", "block/aten::exp#0: result",
                                                 "block/aten::exp#1: result"});
}

TEST_CASE("Rules that match nothing are told", "[backend][policy]") {
  const auto policy =
      make_policy(PolicyTable().op("aten::exp", Policy::kSave).op("aten::addmm", Policy::kSave));
  CHECK(policy->unmatched().size() == 2);
  checkpoint({.name = "r", .policy = policy})(exp_of)(step_input()).sum().backward();
  REQUIRE(policy->unmatched().size() == 1);
  CHECK(policy->unmatched()[0].str() == "op 'aten::addmm' -> SAVE (code)");
  const auto other = make_policy(save_matmuls().op("aten::addmm", Policy::kSave));
  const at::Tensor z = checkpoint({.name = "other", .policy = other})(sin_of)(step_input());
  const at::Tensor y = checkpoint({.name = "r", .policy = policy})(sin_of)(step_input());
  CHECK(memory_report().unmatched_rules.size() == 1);  // once, without rules of presets
  CHECK_THAT(memory_report().str(),
             ContainsSubstring("matched no op or call so far: op 'aten::addmm' -> SAVE (code)"));
}

TEST_CASE("A rule that names no op is refused, and one with a wildcard is not",
          "[backend][policy]") {
  const auto error_of = [](const char* op) {
    return error_text([&] { make_policy(PolicyTable().op(op, Policy::kSave)); });
  };
  CHECK_THAT(
      error_of("aten::gelo"),
      ContainsSubstring("[policy] op rule 'aten::gelo': expected an op that is registered, got "
                        "another name. Did you mean aten::gelu, ") &&
          ContainsSubstring("? Load the library that registers it before"));
  CHECK_THAT(error_of("soft_max"), ContainsSubstring("Did you mean aten::softmax"));
  CHECK_THAT(error_of("torch.ops.aten.add.Tenser"),
             ContainsSubstring("expected an overload of aten::add that is registered, got another "
                               "one. Did you mean aten::add.Tensor? "));
  CHECK_THAT(error_of("aten::mm.Tensor"), ContainsSubstring("all of them are meant"));
  for (const char* op : {"aten::gelo*", "tag:view", "aten::add", "add.Tensor", "aten::mm.default",
                         "remat_policy_test::exp", "no_such_library::op", "*"})
    make_policy(PolicyTable().op(op, Policy::kSave));
  make_policy(PolicyTable().call("aten::gelo", Policy::kSave));
}

TEST_CASE("A rule that names no op of a library is refused in the first region",
          "[backend][policy]") {
  const auto policy = make_policy(PolicyTable().op("remat_policy_test::exq", Policy::kSave));
  const auto run = [&] { checkpoint({.name = "r", .policy = policy})(exp_of)(step_input()); };
  for (int i = 0; i < 2; ++i) {
    CHECK_THAT(error_text(run), ContainsSubstring("op rule 'remat_policy_test::exq'") &&
                                    ContainsSubstring("Did you mean remat_policy_test::exp?"));
  }
  const auto unknown = make_policy(PolicyTable().op("remat_no_library::exp", Policy::kSave));
  checkpoint({.name = "r", .policy = unknown})(exp_of)(step_input()).sum().backward();
}

TEST_CASE("A policy in a region whose ops are not seen is refused", "[backend][policy]") {
  CHECK_THAT(error_text([] {
               checkpoint({.name = "r", .intercept = false, .policy = make_policy(save_matmuls())});
             }),
             ContainsSubstring("region 'r': policy: expected intercept = true"));
}

TEST_CASE("OFFLOAD of an op wants a place, and uses it", "[backend][policy]") {
  const auto table = PolicyTable().op("aten::exp", Policy::kOffload);
  CHECK_THAT(
      error_text([&] { checkpoint(with(table))(exp_of)(step_input()); }),
      ContainsSubstring("call 'aten::exp#0' (OFFLOAD)") && ContainsSubstring("offload_store"));
  CheckpointOptions options = with(table);
  options.offload_store = host_memory_store();
  check_as_plain([](const at::Tensor& x) { return x.sin().exp().tanh().exp(); }, {}, options);
}

TEST_CASE("Rules for ops do not apply inside a user's SAVE call", "[backend][policy]") {
  const TensorFn fn = [](const at::Tensor& x) {
    return save("whole", [](const at::Tensor& t) { return counted_exp(t).sin(); })(x.sin())
        .tanh()
        .exp();
  };
  CheckpointOptions options = with(PolicyTable().op("remat_policy_test::exp", Policy::kSave));
  CHECK(runs_of(fn, options) == 1);
  const at::Tensor y = checkpoint(options)(fn)(step_input());
  for (const std::string& name : kept_names()) CHECK_FALSE(name.starts_with("remat_policy_test"));
}

TEST_CASE("A region inside has a policy of its own, or none", "[backend][policy]") {
  const TensorFn inner = [](const at::Tensor& x) { return counted_exp(x.sin()).tanh().exp(); };
  const auto nested = [&](const CheckpointOptions& inside) -> TensorFn {
    return [=](const at::Tensor& x) { return checkpoint(inside)(inner)(x.sin()).tanh(); };
  };
  const auto saving = with(PolicyTable().op("remat_policy_test::exp", Policy::kSave));
  const CheckpointOptions plain{.name = "inner"};
  CHECK(runs_of(nested(plain), {.name = "r"}) == 3);
  CHECK(runs_of(nested(plain), saving) == 3);
  CHECK(runs_of(nested(saving), {.name = "r"}) == 2);
}

}  // namespace remat
