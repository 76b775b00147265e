// SPDX-License-Identifier: BSD-3-Clause

// Number of runs of named calls in nested regions, and a check that kept memory is minimal.
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/same_bits.h"

namespace remat {
namespace {

using Tensors = std::vector<at::Tensor>;

using Fn = std::function<at::Tensor(const at::Tensor&)>;

/// Calls `fn` in `depth` nested regions, each with its own work before or after the inner region.
at::Tensor nest(int depth, bool work_after, const Fn& fn, const at::Tensor& x) {
  if (depth == 0) return fn(x);
  const Fn level = [=](const at::Tensor& t) {
    if (work_after) return nest(depth - 1, work_after, fn, t).sin();
    return nest(depth - 1, work_after, fn, t.sin());
  };
  return checkpoint({.name = "level " + std::to_string(depth)})(level)(x);
}

at::Tensor nest_plain(int depth, bool work_after, const Fn& fn, const at::Tensor& x) {
  if (depth == 0) return fn(x);
  if (work_after) return nest_plain(depth - 1, work_after, fn, x).sin();
  return nest_plain(depth - 1, work_after, fn, x.sin());
}

/// Counts the runs of one call in a forward and backward; gradients must be bitwise those of plain
/// code.
int count_runs(int depth, bool work_after, Policy policy, Keep keep) {
  int runs = 0;
  const Fn fn = [&](const at::Tensor& x) {
    const auto call = [&](const at::Tensor& t) { return ++runs, t.exp() * t; };
    return native_op(call, "call", policy, keep)(x).tanh().exp();
  };
  const at::Tensor x = torch::full({3}, 0.5).requires_grad_();
  const at::Tensor y = torch::full({3}, 0.5).requires_grad_();
  nest(depth, work_after, fn, x).sum().backward();
  const int counted = runs;
  nest_plain(depth, work_after, fn, y).sum().backward();
  CHECK(same_bits(x.grad(), y.grad()));
  return counted;
}

}  // namespace

TEST_CASE("A SAVE call runs once per region around its own, and once if all keep it",
          "[backend][native_op]") {
  for (const int depth : {1, 2, 3}) {
    INFO("depth " << depth);
    // In the forward, and in the replay of each region but the innermost.
    CHECK(count_runs(depth, true, Policy::kSave, Keep::kInnermostRegion) == depth);
    // In the forward, and in the replay of each region.
    CHECK(count_runs(depth, true, Policy::kRecompute, Keep::kInnermostRegion) == depth + 1);
    CHECK(count_runs(depth, true, Policy::kRecompute, Keep::kAllRegions) == depth + 1);
    CHECK(count_runs(depth, true, Policy::kSave, Keep::kAllRegions) == 1);
    CHECK(count_runs(depth, false, Policy::kSave, Keep::kAllRegions) == 1);
    // Nothing follows the inner region: the replay of an outer region ends when it has made the
    // inner region's argument; the replay of the second innermost also makes what the call keeps.
    CHECK(count_runs(depth, false, Policy::kRecompute, Keep::kInnermostRegion) == 2);
    CHECK(count_runs(depth, false, Policy::kSave, Keep::kInnermostRegion) == (depth == 1 ? 1 : 2));
  }
}

TEST_CASE("SAVE in an inner region keeps nothing beyond what the outer one keeps",
          "[backend][native_op]") {
  const auto kept = [](Keep keep) {
    const at::Tensor x = torch::rand({64, 64}).requires_grad_();
    const MemoryMeter meter;
    const at::Tensor y = nest(
        2, /*work_after=*/false,
        [keep](const at::Tensor& t) {
          return native_op([](const at::Tensor& s) { return s.exp().sin(); }, "call", Policy::kSave,
                           keep)(t)
              .tanh()
              .sum();
        },
        x);
    return meter.current_bytes(default_device());
  };
  constexpr int64_t kTensor = 64 * 64 * 4;
  CHECK(kept(Keep::kInnermostRegion) == block_bytes(4));
  // Kept are exp's result, which exp and sin save, and sin's, which the bare tanh reads.
  CHECK(kept(Keep::kAllRegions) == 2 * kTensor + block_bytes(4));
}

namespace {

/// A node of a model: a call on results of earlier nodes. Result 0 is the model's input, and result
/// i + 1 is that of node i.
struct Node {
  std::string name;
  std::vector<size_t> inputs;
  std::function<at::Tensor(const Tensors&)> fn;
};

struct Graph {
  at::Tensor input;
  std::shared_ptr<const Tensors> parameters;
  std::vector<Node> nodes;
};

/// Policy of each node of a graph.
using Assignment = std::vector<Policy>;

at::Tensor run(const Graph& graph, const Assignment& policies, const at::Tensor& input) {
  Tensors values{input};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    Tensors arguments;
    for (const size_t j : node.inputs) arguments.push_back(values[j]);
    values.push_back(native_op(node.fn, node.name, policies[i])(arguments));
  }
  return values.back();
}

/// Returns the fewest bytes that can stay after the forward, from a plain run; exact if calls read
/// their arguments before they save. They are the storages of
/// - tensors that autograd saves in SAVE calls, except results of RECOMPUTE calls,
/// - results of SAVE calls that a RECOMPUTE call reads on the way to the last tensor that a replay
///   has to make,
/// - the final result, which the caller holds.
/// Parameters and the input do not count, as they existed before.
int64_t least_bytes(const Graph& graph, const Assignment& policies) {
  Tensors alive;  // keeps the tensors alive, so that no address is reused
  std::map<const void*, size_t> maker;
  const auto storage_of = [](const at::Tensor& t) -> const void* {
    return t.storage().unsafeGetStorageImpl();
  };
  Tensors values{graph.input};
  std::set<const void*> before{storage_of(graph.input)};
  for (const at::Tensor& parameter : *graph.parameters) before.insert(storage_of(parameter));
  std::map<const void*, int64_t> kept;
  std::vector<Tensors> saved(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    Tensors arguments;
    for (const size_t j : node.inputs) arguments.push_back(values[j]);
    const SavedTensorsHooksGuard guard(SavedTensorsHooks{
        .pack = [&](const at::Tensor& t) -> std::any {
          saved[i].push_back(t);
          alive.push_back(t);
          return t;
        },
        .unpack = [](const std::any& t) { return std::any_cast<at::Tensor>(t); }});
    values.push_back(node.fn(arguments));
    maker.emplace(storage_of(values.back()), i);
  }
  const auto is_recomputed = [&](const at::Tensor& t) {
    const auto made = maker.find(storage_of(t));
    return made != maker.end() && policies[made->second] == Policy::kRecompute;
  };
  size_t replay_end = 0;  // one past the last node that a replay must reach
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const at::Tensor& t : saved[i]) {
      if (policies[i] == Policy::kRecompute || is_recomputed(t)) replay_end = i + 1;
    }
  }
  const auto keep = [&](const at::Tensor& t) {
    if (before.contains(storage_of(t))) return;
    kept[storage_of(t)] = block_bytes(static_cast<int64_t>(t.storage().nbytes()));
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const bool is_saved = policies[i] != Policy::kRecompute;
    for (const at::Tensor& t : saved[i]) {
      if (is_saved && !is_recomputed(t)) keep(t);
    }
    if (is_saved || i >= replay_end) continue;
    for (const size_t j : graph.nodes[i].inputs) {
      if (j > 0 && policies[j - 1] != Policy::kRecompute) keep(values[j]);
    }
  }
  keep(values.back());
  int64_t bytes = 0;
  for (const auto& [storage, size] : kept) bytes += size;
  return bytes;
}

at::Tensor make_parameter(at::IntArrayRef sizes) {
  return torch::randn(sizes).mul_(0.1).requires_grad_();
}

Graph gpt2_block() {
  constexpr int64_t kWidth = 16;
  const auto w = std::make_shared<Tensors>();
  for (int i = 0; i < 4; ++i) w->push_back(make_parameter({kWidth}));
  w->push_back(make_parameter({3 * kWidth, kWidth}));
  w->push_back(make_parameter({kWidth, kWidth}));
  w->push_back(make_parameter({4 * kWidth, kWidth}));
  w->push_back(make_parameter({kWidth, 4 * kWidth}));
  const auto linear = [w](size_t i) {
    return [w, i](const Tensors& in) { return torch::linear(in[0], (*w)[i]); };
  };
  const auto norm = [w](size_t i) {
    return [w, i](const Tensors& in) {
      return torch::layer_norm(in[0], {kWidth}, (*w)[i], (*w)[i + 1]);
    };
  };
  const auto attention = [](const Tensors& in) {
    const Tensors parts = in[0].view({2, 8, 3, 2, kWidth / 2}).permute({2, 0, 3, 1, 4}).unbind(0);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true)
        .transpose(1, 2)
        .reshape({2, 8, kWidth});
  };
  const auto add = [](const Tensors& in) { return in[0] + in[1]; };
  const auto gelu = [](const Tensors& in) { return torch::gelu(in[0]); };
  return {torch::randn({2, 8, kWidth}).requires_grad_(),
          w,
          {{"norm1", {0}, norm(0)},
           {"qkv", {1}, linear(4)},
           {"attention", {2}, attention},
           {"out", {3}, linear(5)},
           {"add1", {0, 4}, add},
           {"norm2", {5}, norm(2)},
           {"up", {6}, linear(6)},
           {"gelu", {7}, gelu},
           {"down", {8}, linear(7)},
           {"add2", {5, 9}, add}}};
}

Graph resnet_block() {
  const auto w = std::make_shared<Tensors>();
  for (int i = 0; i < 2; ++i) w->push_back(make_parameter({4, 4, 3, 3}));
  for (int i = 0; i < 4; ++i) w->push_back(make_parameter({4}));
  const auto conv = [w](size_t i) {
    return [w, i](const Tensors& in) { return torch::conv2d(in[0], (*w)[i], {}, 1, 1); };
  };
  const auto norm = [w](size_t i) {
    return [w, i](const Tensors& in) {
      return torch::batch_norm(in[0], (*w)[i], (*w)[i + 1], {}, {}, true, 0.1, 1e-5, false);
    };
  };
  const auto relu = [](const Tensors& in) { return in[0].relu(); };
  return {torch::randn({2, 4, 8, 8}).requires_grad_(),
          w,
          {{"conv1", {0}, conv(0)},
           {"norm1", {1}, norm(2)},
           {"relu1", {2}, relu},
           {"conv2", {3}, conv(1)},
           {"norm2", {4}, norm(4)},
           {"add", {0, 5}, [](const Tensors& in) { return in[0] + in[1]; }},
           {"relu2", {6}, relu}}};
}

Graph lstm() {
  constexpr int64_t kWidth = 8;
  const auto w = std::make_shared<Tensors>(
      Tensors{make_parameter({4 * kWidth, kWidth}), make_parameter({4 * kWidth, kWidth})});
  Graph graph{torch::randn({4, kWidth}).requires_grad_(), w, {}};
  size_t hidden = 0;
  size_t cell = 0;
  for (int step = 0; step < 3; ++step) {
    const std::string at = std::to_string(step);
    const auto add = [&](const std::string& name, std::vector<size_t> inputs, auto fn) {
      graph.nodes.push_back({name + at, std::move(inputs), fn});
      return graph.nodes.size();
    };
    const size_t gates = add("gates", {0, hidden}, [w](const Tensors& in) {
      return torch::linear(in[0], (*w)[0]) + torch::linear(in[1], (*w)[1]);
    });
    const size_t input = add("input", {gates}, [](const Tensors& in) {
      return in[0].narrow(1, 0, kWidth).sigmoid() * in[0].narrow(1, kWidth, kWidth).tanh();
    });
    const size_t forget = add("forget", {gates, cell}, [](const Tensors& in) {
      return in[0].narrow(1, 2 * kWidth, kWidth).sigmoid() * in[1];
    });
    cell = add("cell", {forget, input}, [](const Tensors& in) { return in[0] + in[1]; });
    hidden = add("hidden", {gates, cell}, [](const Tensors& in) {
      return in[0].narrow(1, 3 * kWidth, kWidth).sigmoid() * in[1].tanh();
    });
  }
  return graph;
}

Graph mixture_of_experts() {
  constexpr int64_t kWidth = 8;
  const auto w = std::make_shared<Tensors>();
  w->push_back(make_parameter({3, kWidth}));
  for (int i = 0; i < 6; ++i) w->push_back(make_parameter({kWidth, kWidth}));
  const auto expert = [w](size_t i) {
    return [w, i](const Tensors& in) {
      return torch::linear(torch::gelu(torch::linear(in[0], (*w)[1 + 2 * i])), (*w)[2 + 2 * i]) *
             in[1].narrow(1, static_cast<int64_t>(i), 1);
    };
  };
  const auto add = [](const Tensors& in) { return in[0] + in[1]; };
  return {torch::randn({6, kWidth}).requires_grad_(),
          w,
          {{"router", {0}, [w](const Tensors& in) { return torch::linear(in[0], (*w)[0]); }},
           {"weights",
            {1},
            [](const Tensors& in) {
              const auto [top, index] = in[0].softmax(1).topk(2, 1);
              return torch::zeros_like(in[0]).scatter(1, index, top);
            }},
           {"expert0", {0, 2}, expert(0)},
           {"expert1", {0, 2}, expert(1)},
           {"expert2", {0, 2}, expert(2)},
           {"add1", {3, 4}, add},
           {"add2", {6, 5}, add}}};
}

bool is_matmul(const std::string& name) {
  for (const char* part : {"qkv", "out", "up", "down", "conv", "gates", "router", "expert"}) {
    if (name.find(part) == 0) return true;
  }
  return false;
}

void check_least(const char* model, const Graph& graph) {
  const size_t count = graph.nodes.size();
  std::map<std::string, Assignment> assignments{{"all SAVE", Assignment(count, Policy::kSave)},
                                                {"none", Assignment(count, Policy::kRecompute)}};
  Assignment& alternating = assignments["alternating"];
  Assignment& other = assignments["the others"];
  Assignment& matmuls = assignments["matmuls"];
  Assignment& all_but_matmuls = assignments["all but matmuls"];
  for (size_t i = 0; i < count; ++i) {
    alternating.push_back(i % 2 == 0 ? Policy::kSave : Policy::kRecompute);
    other.push_back(i % 2 == 1 ? Policy::kSave : Policy::kRecompute);
    const bool matmul = is_matmul(graph.nodes[i].name);
    matmuls.push_back(matmul ? Policy::kSave : Policy::kRecompute);
    all_but_matmuls.push_back(matmul ? Policy::kRecompute : Policy::kSave);
  }
  for (const auto& [name, policies] : assignments) {
    INFO(model << ", " << name);
    const int64_t expected = least_bytes(graph, policies);
    const MemoryMeter meter;
    const at::Tensor y = checkpoint()([&graph, policies = policies](const at::Tensor& x) {
      return run(graph, policies, x);
    })(graph.input);
    CHECK(meter.current_bytes(default_device()) == expected);
    y.sum().backward();
  }
}

}  // namespace

TEST_CASE("A GPT-2 block keeps the least that its policies allow", "[backend][native_op]") {
  check_least("GPT-2", gpt2_block());
}

TEST_CASE("A ResNet block keeps the least that its policies allow", "[backend][native_op]") {
  check_least("ResNet", resnet_block());
}

TEST_CASE("An LSTM keeps the least that its policies allow", "[backend][native_op]") {
  check_least("LSTM", lstm());
}

TEST_CASE("A mixture of experts keeps the least that its policies allow", "[backend][native_op]") {
  check_least("MoE", mixture_of_experts());
}

}  // namespace remat
