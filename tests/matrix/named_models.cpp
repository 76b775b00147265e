// SPDX-License-Identifier: BSD-3-Clause

// Blocks made of parts. A part gets tensors of the block as arguments and parameters by capture.
#include "matrix/named_models.h"

#include <torch/torch.h>

#include <cmath>
#include <tuple>
#include <utility>

namespace remat::matrix {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kTime = 4;
constexpr int64_t kWidth = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kExperts = 3;

using Two = std::tuple<at::Tensor, at::Tensor>;

Tensors sequence_input() {
  return {torch::randn({kBatch, kTime, kWidth})};
}

at::Tensor parameter(at::IntArrayRef sizes) {
  return torch::randn(sizes).mul_(0.3).requires_grad_();
}

struct Linear {
  Linear(int64_t in, int64_t out) : weight(parameter({out, in})), bias(parameter({out})) {}
  at::Tensor operator()(const at::Tensor& x) const { return at::linear(x, weight, bias); }
  at::Tensor weight;
  at::Tensor bias;
};

Tensors parameters_of(const std::vector<Linear>& layers) {
  Tensors all;
  for (const Linear& layer : layers) all.insert(all.end(), {layer.weight, layer.bias});
  return all;
}

at::Tensor attention(const at::Tensor& qkv) {
  const Tensors parts = qkv.chunk(3, -1);
  const auto heads = [](const at::Tensor& t) {
    return t.view({kBatch, kTime, kHeads, kWidth / kHeads}).transpose(1, 2);
  };
  const at::Tensor scores =
      heads(parts[0]).matmul(heads(parts[1]).transpose(-1, -2)) / std::sqrt(kWidth / kHeads);
  const at::Tensor mask = torch::ones({kTime, kTime}, torch::kBool).triu(1);
  const at::Tensor weights = scores.masked_fill(mask, -1e4).softmax(-1).to(parts[2].dtype());
  const at::Tensor mixed = torch::dropout(weights, 0.1, /*train=*/true).matmul(heads(parts[2]));
  return mixed.transpose(1, 2).reshape({kBatch, kTime, kWidth});
}

}  // namespace

/// Calls that follow each other directly.
Model make_mlp_of_calls(const Pattern& pattern) {
  const Linear up(kWidth, 2 * kWidth);
  const Linear down(2 * kWidth, kWidth);
  const auto block = [=](const Tensors& in) -> Tensors {
    const at::Tensor h = pattern.part(0, up)(in[0]);
    const at::Tensor active = pattern.part(1, [](const at::Tensor& t) { return at::gelu(t); })(h);
    const at::Tensor y = pattern.part(2, down)(active);
    return {pattern.part(3, [](const at::Tensor& t) { return t.tanh(); })(y)};
  };
  return {parameters_of({up, down}), {}, sequence_input, pattern.block(block)};
}

/// Residual adds and dropout between calls.
Model make_gpt2_block_of_calls(const Pattern& pattern) {
  const at::Tensor norm1 = parameter({kWidth});
  const at::Tensor norm2 = parameter({kWidth});
  const Linear qkv(kWidth, 3 * kWidth);
  const Linear projection(kWidth, kWidth);
  const Linear up(kWidth, 2 * kWidth);
  const Linear down(2 * kWidth, kWidth);
  const auto normed = [](const at::Tensor& scale, const Linear& linear) {
    return [=](const at::Tensor& t) { return linear(at::layer_norm(t, {kWidth}, scale)); };
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    const at::Tensor mixed = pattern.part(1, attention)(pattern.part(0, normed(norm1, qkv))(in[0]));
    const at::Tensor projected = pattern.part(2, projection)(mixed);
    const at::Tensor h = in[0] + torch::dropout(projected, 0.2, /*train=*/true);
    const auto gelu = [](const at::Tensor& t) { return at::gelu(t, "tanh"); };
    const at::Tensor active = pattern.part(4, gelu)(pattern.part(3, normed(norm2, up))(h));
    const auto down_and_drop = [=](const at::Tensor& t) {
      return torch::dropout(down(t), 0.2, /*train=*/true);
    };
    return {h + pattern.part(5, down_and_drop)(active)};
  };
  Tensors parameters = parameters_of({qkv, projection, up, down});
  parameters.insert(parameters.end(), {norm1, norm2});
  return {parameters, {}, sequence_input, pattern.block(block)};
}

/// Calls that write buffers of the model twice, and code between them that reads the buffers.
Model make_conv_batch_norm_of_calls(const Pattern& pattern) {
  const at::Tensor weight = parameter({3, 3, 3, 3});
  const at::Tensor scale = parameter({3});
  const at::Tensor shift = parameter({3});
  const at::Tensor mean = torch::zeros({3});
  const at::Tensor variance = torch::ones({3});
  const auto norm = [=](const at::Tensor& t) {
    return at::batch_norm(t, scale, shift, mean, variance, /*training=*/true, 0.1, 1e-5, false);
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    const auto convolve = [=](const at::Tensor& t) { return at::conv2d(t, weight, {}, 1, 1); };
    at::Tensor normed = pattern.part(1, norm)(pattern.part(0, convolve)(in[0]));
    const at::Tensor active = pattern.part(2, [](at::Tensor& t) { return t.relu_(); })(normed);
    const at::Tensor scaled = active * (1 + mean.mean());
    const at::Tensor again = pattern.part(3, norm)(scaled);
    const auto by_variance = [=](const at::Tensor& t) { return t * variance.mean(); };
    return {pattern.part(4, by_variance)(again) + mean.sum()};
  };
  return {{weight, scale, shift},
          {mean, variance},
          [] {
            return Tensors{torch::randn({kBatch, 3, 5, 5})};
          },
          pattern.block(block)};
}

/// One call per step of the cell, each reading what the one before returned.
Model make_lstm_of_calls(const Pattern& pattern) {
  const Linear input(kWidth, 4 * kWidth);
  const Linear hidden(kWidth, 4 * kWidth);
  const auto cell = [=](const at::Tensor& x, const Two& state) -> Two {
    return at::lstm_cell(x, {std::get<0>(state), std::get<1>(state)}, input.weight, hidden.weight,
                         input.bias, hidden.bias);
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    Two state{in[1], in[2]};
    Tensors outputs;
    for (int64_t t = 0; t < kTime; ++t) {
      const at::Tensor x = in[0].select(0, t);
      state = pattern.part(static_cast<size_t>(t), cell)(x, state);
      outputs.push_back(torch::dropout(std::get<0>(state), 0.2, /*train=*/true));
    }
    return {at::stack(outputs), std::get<0>(state), std::get<1>(state)};
  };
  return {parameters_of({input, hidden}),
          {},
          [] {
            return Tensors{torch::randn({kTime, kBatch, kWidth}), torch::randn({kBatch, kWidth}),
                           torch::randn({kBatch, kWidth})};
          },
          pattern.block(block)};
}

/// The shapes of later calls depend on what the first one returned.
Model make_top2_moe_of_calls(const Pattern& pattern) {
  const Linear gate(kWidth, kExperts);
  std::vector<Linear> experts;
  for (int64_t i = 0; i < kExperts; ++i) experts.emplace_back(kWidth, kWidth);
  const auto choose = [=](const at::Tensor& tokens) -> Two {
    return gate(tokens).softmax(-1).topk(2, -1);
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    const at::Tensor tokens = in[0].reshape({-1, kWidth});
    const Two chosen = pattern.part(0, choose)(tokens);
    at::Tensor mixed = torch::zeros_like(tokens);
    for (int64_t i = 0; i < kExperts; ++i) {
      const Tensors where = std::get<1>(chosen).eq(i).nonzero().unbind(1);
      const auto expert = [&](const at::Tensor& x, const Tensors& at, const at::Tensor& weights) {
        const at::Tensor weight = weights.index({at[0], at[1]}).unsqueeze(1);
        return experts[i](x.index_select(0, at[0])).relu() * weight;
      };
      const at::Tensor output =
          pattern.part(static_cast<size_t>(i) + 1, expert)(tokens, where, std::get<0>(chosen));
      mixed = mixed.index_add(0, where[0], output.to(mixed.dtype()));
    }
    return {in[0] + mixed.view_as(in[0])};
  };
  Tensors parameters = parameters_of({gate});
  const Tensors more = parameters_of(experts);
  parameters.insert(parameters.end(), more.begin(), more.end());
  return {parameters, {}, sequence_input, pattern.block(block)};
}

/// Results that share memory with an argument or with each other, or that are the same tensor.
Model make_views_of_calls(const Pattern& pattern) {
  const Linear linear(kWidth, kWidth);
  const auto view_of_result = [=](const at::Tensor& t) { return linear(t).tanh().transpose(1, 2); };
  const auto view_of_argument = [](const at::Tensor& t) { return t.narrow(1, 1, kWidth - 2); };
  const auto halves = [](const at::Tensor& t) -> Two {
    const at::Tensor exp = t.sigmoid();
    return {exp.narrow(1, 0, 3), exp.narrow(1, 3, 3).transpose(1, 2)};
  };
  const auto same_twice = [](const at::Tensor& t) -> Tensors {
    const at::Tensor sin = t.sin();
    return {sin, sin, sin.reshape({-1}), t};
  };
  const auto part_and_whole = [](const Tensors& parts) -> Tensors {
    return {parts[0].select(0, 1), parts[0], parts[1].cos(), parts[1]};
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    const at::Tensor turned = pattern.part(0, view_of_result)(in[0].sin());
    const at::Tensor narrowed = pattern.part(1, view_of_argument)(turned);
    const auto [first, second] = pattern.part(2, halves)(narrowed);
    const at::Tensor product = first.exp() * second.transpose(1, 2);
    const Tensors same = pattern.part(3, same_twice)(product);
    const Tensors last = pattern.part(4, part_and_whole)(Tensors{same[0].cos(), same[1]});
    const at::Tensor all = last[0] * last[1] * last[2] + same[2].view_as(same[3]) * last[3];
    const at::Tensor mean = (all + same[3]).mean();
    return {in[0] * mean.cos() + turned.transpose(1, 2), turned, second, last[0]};
  };
  return {parameters_of({linear}), {}, sequence_input, pattern.block(block)};
}

/// Calls that write their arguments, and code between calls that writes their results.
Model make_in_place_calls(const Pattern& pattern) {
  const Linear linear(kWidth, kWidth);
  const at::Tensor scale = parameter({kWidth});
  const auto through_view = [=](at::Tensor& t) {
    t.select(1, 0).mul_(scale);
    return t;
  };
  const auto multiply = [=](at::Tensor& t) { t.mul_(scale); };
  const auto exchange = [](at::Tensor& a, at::Tensor& b) {
    a.add_(b.detach());
    b.add_(a.cos());
    return a.sin();
  };
  const auto block = [=](const Tensors& in) -> Tensors {
    at::Tensor h = pattern.part(0, linear)(in[0]);
    const at::Tensor early = h.tanh();  // reads what is written later
    h.narrow(2, 0, kWidth / 2).add_(early.narrow(2, kWidth / 2, kWidth / 2));
    pattern.part(1, multiply)(h);
    at::Tensor same = pattern.part(2, through_view)(h);
    const at::Tensor between = h.sigmoid();
    at::Tensor made = in[0].cos();
    const at::Tensor before = made.sigmoid();
    pattern.part(3, multiply)(made);
    const at::Tensor mixed = pattern.part(4, exchange)(made, same);
    same.mul_(2);
    at::Tensor out = pattern.part(5, [=](const at::Tensor& t) { return t + scale; })(h);
    out.add_(between).mul_(scale);
    const at::Tensor product = out.sigmoid() * mixed;
    pattern.part(6, multiply)(out);
    return {(out + product * before + made).to(in[0].dtype()), h};
  };
  Tensors parameters = parameters_of({linear});
  parameters.push_back(scale);
  return {parameters, {}, sequence_input, pattern.block(block)};
}

/// Random numbers inside calls and between them.
Model make_random_calls(const Pattern& pattern) {
  const Linear linear(kWidth, kWidth);
  const auto drop = [](const at::Tensor& t) { return torch::dropout(t, 0.3, /*train=*/true); };
  const auto noisy = [](const at::Tensor& t) -> Two {
    const at::Tensor noise = torch::randn_like(t);
    return {t * noise, noise};
  };
  const auto drop_in_place = [](at::Tensor& t) { torch::dropout_(t, 0.3, /*train=*/true); };
  const auto block = [=](const Tensors& in) -> Tensors {
    const at::Tensor h = drop(pattern.part(0, drop)(linear(in[0])).sin());
    const auto [scaled, noise] = pattern.part(1, noisy)(h);
    at::Tensor mixed = drop(scaled.exp()) + noise * torch::rand({kWidth});
    pattern.part(2, drop_in_place)(mixed);
    const at::Tensor last = pattern.part(3, drop)(mixed.cos());
    const auto shift = [](const at::Tensor& t) { return t.sin() + torch::rand({1}); };
    return {pattern.part(4, shift)(last) * drop(mixed).sigmoid()};
  };
  return {parameters_of({linear}), {}, sequence_input, pattern.block(block)};
}

/// Results of every type, and ops with several results.
Model make_many_results_of_calls(const Pattern& pattern) {
  using Nest = std::tuple<at::Tensor, Tensors>;
  const Linear linear(kWidth, 2 * kWidth);
  const auto split = [=](const at::Tensor& t) -> Nest {
    const at::Tensor h = linear(t);
    Tensors parts = h.split(kWidth, -1);
    parts.emplace_back();
    return {h.sin(), parts};
  };
  const auto largest = [](const at::Tensor& t) -> Two { return t.max(-1, /*keepdim=*/true); };
  const auto sorted = [](const at::Tensor& t) -> Two { return t.sort(-1); };
  const auto rows = [](const at::Tensor& t) -> Tensors { return t.sigmoid().unbind(1); };
  const auto no_tensor = [](const Tensors& all) { return std::optional(all[2]); };
  const auto block = [=](const Tensors& in) -> Tensors {
    const auto [sines, parts] = pattern.part(0, split)(in[0]);
    const auto [high, place] = pattern.part(1, largest)(sines);
    const auto [ordered, order] = pattern.part(2, sorted)(parts[0]);
    const at::Tensor taken = parts[1].gather(-1, order) * ordered + sines.gather(-1, place) * high;
    const Tensors unbound = pattern.part(3, rows)(taken);
    const auto none = pattern.part(4, no_tensor)(parts);
    const at::Tensor y = at::stack(unbound, 1).tanh() * unbound[2].unsqueeze(1);
    return {none->defined() ? y + 1 : y, high, unbound[0]};
  };
  return {parameters_of({linear}), {}, sequence_input, pattern.block(block)};
}

}  // namespace remat::matrix
