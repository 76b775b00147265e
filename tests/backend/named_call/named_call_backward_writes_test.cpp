// SPDX-License-Identifier: BSD-3-Clause

// Backwards of custom functions that write in place what they have saved, in regions and calls.
#include <any>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/named_step.h"

namespace remat {
namespace {

using torch::autograd::AutogradContext;

/// x -> x exp(x). The saved exp(x) is an attribute of the context, too; the backward writes the
/// saved tensor.
struct ReadsAttribute : torch::autograd::Function<ReadsAttribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor kept = x.exp();
    context->saved_data["kept"] = kept;
    context->save_for_backward({kept});
    return x * kept;
  }
  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor before = saved * 2;
    saved.mul_(0.5);
    return {grads[0] * (before + context->saved_data["kept"].toTensor())};
  }
};

/// ReadsAttribute, but its backward writes the attribute and reads the saved tensor.
struct WritesAttribute : torch::autograd::Function<WritesAttribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    return ReadsAttribute::forward(context, x);
  }
  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    context->saved_data["kept"].toTensor().mul_(0.5);
    return {grads[0] * saved};
  }
};

/// Saves exp(x) once or twice; its backward writes the first and reads the last.
template <int times>
struct WritesFirst : torch::autograd::Function<WritesFirst<times>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor kept = x.exp();
    context->save_for_backward(Tensors(times, kept));
    return x * kept;
  }
  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    const Tensors saved = context->get_saved_variables();
    saved.front().mul_(0.5);
    return {grads[0] * saved.back()};
  }
};

/// The backward writes `factor` after reading it.
struct WritesFactor : torch::autograd::Function<WritesFactor> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& factor) {
    context->save_for_backward({factor});
    return x * factor;
  }
  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    const at::Tensor factor = context->get_saved_variables()[0];
    const at::Tensor before = factor.clone();
    factor.detach().mul_(0.5);
    return {grads[0] * before, at::Tensor()};
  }
};

/// x -> 2 x. Its backward writes the saved part of x, if `writes` is set.
struct WritesPart : torch::autograd::Function<WritesPart> {
  inline static bool writes = true;
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t from) {
    context->save_for_backward({x.slice(0, from)});
    return x * 2;
  }
  static Tensors backward(AutogradContext* context, const Tensors& grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    if (writes) saved.detach().mul_(3);
    return {grads[0] * saved.sum(), at::Tensor()};
  }
};

SavedTensorsHooks hooks_that(bool copy) {
  return {.pack = [copy](const at::Tensor& t) -> std::any { return copy ? t.clone() : t; },
          .unpack =
              [copy](const std::any& packed) {
                const auto& t = std::any_cast<const at::Tensor&>(packed);
                return copy ? t.clone() : t;
              }};
}

/// Hooks that give back one copy for all tensors that begin at the same address.
SavedTensorsHooks hooks_that_copy_memory_once() {
  struct Both {
    at::Tensor saved;  // Keeps the address taken.
    at::Tensor copy;
  };
  const auto all = std::make_shared<std::map<const void*, Both>>();
  return {.pack = [all](const at::Tensor& t) -> std::any {
            Both& both = (*all)[t.const_data_ptr()];
            if (!both.copy.defined()) both = {.saved = t.detach(), .copy = t.detach().clone()};
            return both.copy;
          },
          .unpack = [](const std::any& copy) { return std::any_cast<const at::Tensor&>(copy); }};
}

enum class Where { kNowhere, kAround, kInside };

/// `function` as a named call of policy `policy`, in plain code or a region, and under hooks.
struct Program {
  TensorFn function;
  Policy policy = Policy::kOffload;
  Where where = Where::kInside;
  bool copy = true;  ///< Whether the hooks copy.

  TensorFn in_region(CheckpointOptions options) const {
    const TensorFn called = native_op(function, "call", policy);
    TensorFn body = [called](const at::Tensor& x) { return called(x.sin()); };
    if (where == Where::kInside) body = hooked(body);
    const TensorFn region = checkpoint(std::move(options))(body);
    return where == Where::kAround ? hooked(region) : region;
  }

  TensorFn plain() const {
    const TensorFn body = [f = function](const at::Tensor& x) { return f(x.sin()); };
    return where == Where::kNowhere ? body : hooked(body);
  }

 private:
  TensorFn hooked(TensorFn fn) const {
    return [fn = std::move(fn), copy = copy](const at::Tensor& x) {
      const SavedTensorsHooksGuard guard(hooks_that(copy));
      return fn(x);
    };
  }
};

std::map<std::string, std::shared_ptr<OffloadStore>> stores() {
  return {{"an engine", offload_engine({.min_bytes = 0})},
          {"an engine without room", offload_engine({.min_bytes = 0, .max_bytes = 0})},
          {"host memory", host_memory_store()}};
}

void check_refused(const TensorFn& fn, const char* where, const char* words) {
  CHECK_THROWS_WITH(step(fn), ContainsSubstring(where) &&
                                  ContainsSubstring("nobody writes in backward") &&
                                  ContainsSubstring(words) && ContainsSubstring("clone()"));
}

/// Backward twice through one graph.
Tensors two_backwards(const TensorFn& fn) {
  const at::Tensor x = step_input();
  const at::Tensor y = fn(x).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  return {x.grad()};
}

}  // namespace

TEST_CASE("A backward under hooks does not write what a store has brought back",
          "[backend][native_op][hooks]") {
  const bool copy = GENERATE(true, false);
  const Where where = GENERATE(Where::kInside, Where::kAround);
  const TensorFn function = GENERATE(
      as<TensorFn>{}, [](const at::Tensor& x) { return ReadsAttribute::apply(x); },
      [](const at::Tensor& x) { return WritesAttribute::apply(x); });
  const Program program{.function = function, .where = where, .copy = copy};
  step(program.plain());
  for (const auto& [name, store] : stores()) {
    INFO(name << (copy ? ", hooks that copy" : ", hooks that do not"));
    check_refused(program.in_region({.name = "r", .offload_store = store}),
                  "region 'r', call 'call' (OFFLOAD), tensor 'saved.0' (float32 [4, 8]",
                  "under saved-tensor hooks");
  }
}

TEST_CASE("A backward that nobody can see write what it has saved is right under hooks",
          "[backend][native_op][hooks]") {
  const Program program{.function = [](const at::Tensor& x) { return WritesFirst<1>::apply(x); },
                        .policy = GENERATE(Policy::kRecompute, Policy::kSave),
                        .where = GENERATE(Where::kInside, Where::kAround),
                        .copy = GENERATE(true, false)};
  check_same(step(program.in_region({.name = "r"})), step(program.plain()));
}

TEST_CASE("A backward under hooks does not write what the region has saved twice",
          "[backend][native_op][hooks]") {
  const Program program{.function = [](const at::Tensor& x) { return WritesFirst<2>::apply(x); },
                        .policy = Policy::kRecompute,
                        .where = GENERATE(Where::kInside, Where::kAround)};
  step(program.plain());
  check_refused(program.in_region({.name = "r"}), "region 'r', slot 1",
                "another saved tensor has that memory");
}

TEST_CASE("A backward does not write one of two copies that a store has brought back",
          "[backend][native_op][offload]") {
  const Program program{.function = [](const at::Tensor& x) { return WritesFirst<2>::apply(x); },
                        .where = Where::kNowhere};
  check_refused(program.in_region({.name = "r", .offload_store = host_memory_store()}),
                "call 'call' (OFFLOAD), tensor 'saved.0'", "another saved tensor has that memory");
  // The tensors that an engine brings back share memory as the saved tensors did.
  check_same(
      step(program.in_region({.name = "r", .offload_store = offload_engine({.min_bytes = 0})})),
      step(program.plain()));
}

TEST_CASE("A backward may write its copy of what another node has read before",
          "[backend][native_op][offload]") {
  // The product saves `factor`, too, and its backward runs before that of WritesFactor.
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor factor = x.detach().exp();
    return WritesFactor::apply(x, factor) * factor;
  };
  check_same(step(checkpoint({.name = "r", .offload_store = host_memory_store()})(
                 TensorFn(native_op(fn, "call", Policy::kOffload)))),
             step(fn));
}

TEST_CASE("A backward does not write what another node has saved", "[backend][hooks]") {
  const int64_t from = GENERATE(0, 1);
  // exp's node saves the result of exp, and so does the custom function.
  const TensorFn fn = [=](const at::Tensor& x) { return WritesPart::apply(x.exp(), from); };
  const TensorFn nested = [=](const at::Tensor& x) {
    const TensorFn part = [=](const at::Tensor& a) { return WritesPart::apply(a, from); };
    return checkpoint({.name = "inner"})(part)(x.exp());
  };
  const CheckpointOptions options = GENERATE(
      as<CheckpointOptions>{}, CheckpointOptions{.name = "r"},
      CheckpointOptions{.name = "r", .replay = ReplayEngine::kTape},
      CheckpointOptions{.name = "r", .replay = ReplayEngine::kTape, .cuts = {.positions = {1}}});
  const bool is_nested = GENERATE(false, true);
  const auto region = checkpoint(options);
  const TensorFn in_region = region(is_nested ? nested : fn);
  const TensorFn hooked = [&](const at::Tensor& x) {
    const SavedTensorsHooksGuard guard(hooks_that(true));
    return in_region(x);
  };
  const bool writes_first = GENERATE(false, true);
  for (const bool writes : {writes_first, false, true, true}) {
    WritesPart::writes = writes;
    INFO("from " << from << ", nested " << is_nested << ", cuts " << !options.cuts.positions.empty()
                 << ", writes " << writes);
    if (!writes) {
      check_same(step(in_region), step(fn));
      check_same(step(hooked), step(fn));
      continue;
    }
    CHECK_THROWS_WITH(step(fn), ContainsSubstring("modified by an inplace operation"));
    CHECK_THROWS_WITH(step(in_region), ContainsSubstring("modified by an inplace operation"));
    CHECK_THROWS_WITH(step(hooked), ContainsSubstring("nobody writes in backward"));
  }
}

TEST_CASE("A replay does not begin with what a node has written under hooks",
          "[backend][native_op][hooks]") {
  WritesPart::writes = true;
  const at::Tensor half = at::full({4, 8}, 0.5);
  const TensorFn fn = [&](const at::Tensor& x) {
    const at::Tensor part = x.sigmoid();
    const at::Tensor loss = at::binary_cross_entropy(part, half, {}, at::Reduction::None).exp();
    const at::Tensor sum = loss + part.sin();  // The backward of sin comes first, and gets `part`.
    return sum + WritesPart::apply(part, 0);   // This backward comes before that of sin.
  };
  const auto hooked = [](const TensorFn& program) {
    return TensorFn([program](const at::Tensor& x) {
      const SavedTensorsHooksGuard guard(hooks_that_copy_memory_once());
      return program(x);
    });
  };
  CHECK_NOTHROW(step(hooked(fn)));
  // A replay of the second segment would end with an error, as the written values exceed 1.
  const auto region = checkpoint(
      {.name = "r", .replay = ReplayEngine::kTape, .cuts = {.positions = {1, 5}, .groups = {}}});
  check_refused(hooked(region(fn)), "region 'r, segment 2'",
                "another saved tensor has that memory");
}

TEST_CASE("A backward under hooks does not write what a nested region's call has saved",
          "[backend][native_op][hooks]") {
  const bool copy = GENERATE(true, false);
  const TensorFn function = GENERATE(
      as<TensorFn>{}, [](const at::Tensor& x) { return ReadsAttribute::apply(x); },
      [](const at::Tensor& x) { return WritesFirst<2>::apply(x); });
  const auto hooked = [&](const TensorFn& body) {
    return TensorFn([body, copy](const at::Tensor& x) {
      const SavedTensorsHooksGuard guard(hooks_that(copy));
      return body(x);
    });
  };
  const TensorFn inner = checkpoint({.name = "inner"})(
      TensorFn([&](const at::Tensor& x) { return save("call", function)(x.sin()); }));
  const bool is_between = GENERATE(true, false);
  const TensorFn outer =
      checkpoint({.name = "outer"})(TensorFn(is_between ? hooked(inner) : inner));
  INFO("copy " << copy << ", between " << is_between);
  step(hooked(function));
  check_refused(is_between ? outer : hooked(outer), "region 'inner', call 'call' (SAVE)",
                "under saved-tensor hooks");
}

TEST_CASE("A graph of a backward notices what another node writes", "[backend][hooks]") {
  // The backward of cos comes first, and its graph saves the memory, too.
  const TensorFn fn = [](const at::Tensor& x) {
    const at::Tensor middle = x.sin();
    const at::Tensor first = WritesFactor::apply(x.view({-1}), middle.view({-1}));
    return first.view_as(x) * middle.cos();
  };
  const auto twice = [](const TensorFn& program) {
    const at::Tensor x = step_input();
    const at::Tensor loss = program(x).square().sum();
    const Tensors grads = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true);
    grads[0].square().mean().backward();
  };
  const ReplayEngine replay = GENERATE(ReplayEngine::kFunction, ReplayEngine::kTape);
  check_same(step(checkpoint({.name = "r", .replay = replay})(fn)), step(fn));
  CHECK_THROWS_WITH(twice(fn), ContainsSubstring("modified by an inplace operation"));
  CHECK_THROWS_WITH(twice(checkpoint({.name = "r", .replay = replay})(fn)),
                    ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("A backward writes no memory that a store has brought back for another node",
          "[backend][native_op][offload]") {
  WritesPart::writes = true;
  const int64_t from = GENERATE(0, 1);
  const auto program = [=](Policy policy, bool copies) {
    return TensorFn([=](const at::Tensor& x) {
      const at::Tensor b = native_op(exp_of, "call", policy)(x);
      return b.cos() * WritesPart::apply(copies ? b.clone() : b, from);
    });
  };
  const TensorFn plain = program(Policy::kRecompute, false);
  CHECK_THROWS_WITH(step(plain), ContainsSubstring("modified by an inplace operation"));
  for (const auto& [name, store] : stores()) {
    INFO(name << ", from " << from);
    const TensorFn region =
        checkpoint({.name = "r", .offload_store = store})(program(Policy::kOffload, false));
    if (name == "host memory") {  // Each node gets a copy of its own.
      check_same(step(region), step(program(Policy::kRecompute, true)));
    } else {
      CHECK_THROWS_WITH(step(region), ContainsSubstring("modified by an inplace operation"));
    }
  }
}

TEST_CASE("A backward under hooks that retains its graph does not write what the region has saved",
          "[backend][native_op][hooks]") {
  const Program program{.function = [](const at::Tensor& x) { return WritesFirst<1>::apply(x); },
                        .policy = Policy::kRecompute,
                        .where = GENERATE(Where::kInside, Where::kAround)};
  two_backwards(program.plain());
  CHECK_THROWS_WITH(two_backwards(program.in_region({.name = "r"})),
                    ContainsSubstring("the graph is retained"));
}

}  // namespace remat
