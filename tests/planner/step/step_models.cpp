// SPDX-License-Identifier: BSD-3-Clause

// Steps of models, with times max(FLOP / rate, bytes / bandwidth) + launch of a V100 in fp32.
#include "planner/step/step_models.h"

#include <algorithm>

#include "planner/step/eager_program.h"

namespace remat::test {

namespace {

double op_us(double flop, double bytes) {
  return std::max(flop / 12.5e6, bytes / 700e3) + 6;
}

/// A program on tensors of [rows, columns] floats.
class TensorProgram : public EagerProgram {
 public:
  explicit TensorProgram(int64_t rows) : rows_(rows) {}

  int64_t bytes(int64_t columns) const { return rows_ * columns * 4; }

  int32_t linear(int32_t x, int64_t in, int64_t out) {
    const double flop = 2.0 * static_cast<double>(rows_ * in * out);
    return run1({.name = "aten::addmm",
                 .reads = {x, weight_},
                 .makes = {bytes(out)},
                 .saves = {x, weight_},
                 .us = op_us(flop, static_cast<double>(bytes(in + out))),
                 .weight_gradient = in * out * 4});
  }
  int32_t gelu(int32_t x, int64_t d) {
    return run1({.name = "aten::gelu",
                 .reads = {x},
                 .makes = {bytes(d)},
                 .saves = {x},
                 .us = elementwise(2 * d)});
  }
  int32_t norm(int32_t x, int64_t d) {
    return run1({.name = "aten::native_layer_norm",
                 .reads = {x},
                 .makes = {bytes(d), rows_ * 4, rows_ * 4},
                 .saves = {x},
                 .saves_made = {1, 2},
                 .us = elementwise(2 * d)});
  }
  int32_t dropout(int32_t x, int64_t d) {
    return run1({.name = "aten::native_dropout",
                 .reads = {x},
                 .makes = {bytes(d), bytes(d) / 4},
                 .saves_made = {1},
                 .us = elementwise(2 * d)});
  }
  int32_t add(int32_t x, int32_t y, int64_t d) {
    return run1(
        {.name = "aten::add", .reads = {x, y}, .makes = {bytes(d)}, .us = elementwise(3 * d)});
  }
  /// Flash attention: saves its inputs, its result and the log-sum-exp.
  int32_t attention(std::vector<int32_t> inputs, int64_t d, int64_t length) {
    const double flop = 4.0 * static_cast<double>(rows_ * length * d);
    return run1({.name = "aten::_scaled_dot_product_flash_attention",
                 .reads = inputs,
                 .makes = {bytes(d), rows_ * 4 * 8},
                 .saves = inputs,
                 .saves_made = {0, 1},
                 .us = op_us(flop / 0.6, static_cast<double>(bytes(4 * d)))});
  }
  int32_t loss(int32_t x, int64_t classes) {
    const int32_t log_probabilities = run1({.name = "aten::_log_softmax",
                                            .reads = {x},
                                            .makes = {bytes(classes)},
                                            .saves_made = {0},
                                            .us = elementwise(2 * classes)});
    return run1({.name = "aten::nll_loss_forward",
                 .reads = {log_probabilities},
                 .makes = {4, 4},
                 .saves = {log_probabilities},
                 .saves_made = {1},
                 .us = elementwise(1)});
  }
  double elementwise(int64_t columns) const {
    return op_us(0, static_cast<double>(bytes(columns)));
  }

  int32_t self_attention(int32_t x, int64_t d) {
    const int32_t qkv = linear(norm(x, d), d, 3 * d);
    return add(x, dropout(linear(attention({qkv}, d, 512), d, d), d), d);
  }
  int32_t feed_forward(int32_t x, int64_t d) {
    const int32_t inner = gelu(linear(norm(x, d), d, 4 * d), 4 * d);
    return add(x, dropout(linear(inner, 4 * d, d), d), d);
  }

  /// A convolution of images of `side` squared, `channels` deep; rows_ is the batch.
  int32_t convolution(int32_t x, int64_t in, int64_t out, int64_t side) {
    const double flop = 18.0 * static_cast<double>(rows_ * side * side * in * out);
    return run1({.name = "aten::convolution",
                 .reads = {x, weight_},
                 .makes = {bytes(out * side * side)},
                 .saves = {x, weight_},
                 .us = op_us(flop, static_cast<double>(bytes((in + out) * side * side))),
                 .workspace = bytes(side * side),
                 .weight_gradient = 36 * in * out});
  }
  int32_t batch_norm(int32_t x, int64_t channels, int64_t side) {
    const int64_t columns = channels * side * side;
    return run1({.name = "aten::native_batch_norm",
                 .reads = {x},
                 .makes = {bytes(columns), channels * 4, channels * 4},
                 .saves = {x},
                 .saves_made = {1, 2},
                 .us = elementwise(2 * columns)});
  }
  int32_t double_convolution(int32_t x, int64_t in, int64_t out, int64_t side) {
    for (int i = 0; i < 2; ++i) {
      x = batch_norm(convolution(x, i == 0 ? in : out, out, side), out, side);
      x = write("aten::relu_", x, elementwise(2 * out * side * side));
    }
    return x;
  }

 protected:
  int64_t rows_;
  int32_t weight_ = outside(4096);
};

std::string layer_name(const std::string& stem, int layer) {
  return stem + "." + std::to_string(layer);
}

}  // namespace

StepProfile line_step(int32_t records) {
  StepProfile profile;
  profile.values.push_back({-1, 0, 10, 0});
  for (int32_t j = 0; j < records; ++j) {
    StepRecord record;
    record.op = "op" + std::to_string(j);
    record.replay_us = 1 << j;
    record.reads = {j};
    record.makes = {j + 1};
    profile.records.push_back(record);
    profile.values.push_back({j, j + 1, 10, std::min(j + 1, records - 1)});
    profile.slots.push_back({j, j, records - 1 - j});
    StepNode node;
    node.name = "node" + std::to_string(j);
    node.record = records - 1 - j;
    profile.nodes.push_back(node);
  }
  return profile;
}

StepProfile mlp_step(int layers) {
  constexpr int64_t d = 256;
  TensorProgram program(512);
  int32_t x = program.outside(program.bytes(d));
  for (int i = 0; i < layers; ++i) {
    program.place(layer_name("layers", i));
    x = program.norm(program.gelu(program.linear(x, d, d), d), d);
  }
  program.place("head");
  program.loss(program.linear(x, d, 10), 10);
  return program.finish("mlp");
}

StepProfile transformer_step(int layers) {
  constexpr int64_t d = 1024;
  constexpr int64_t words = 8000;
  TensorProgram program(4 * 512);
  const int32_t ids = program.outside(program.bytes(2));
  int32_t x = program.run1({.name = "aten::embedding",
                            .reads = {ids},
                            .makes = {program.bytes(d)},
                            .saves = {ids},
                            .us = program.elementwise(2 * d)});
  for (int i = 0; i < layers; ++i) {
    program.place(layer_name("h", i) + ".attn");
    x = program.self_attention(x, d);
    program.place(layer_name("h", i) + ".mlp");
    x = program.feed_forward(x, d);
  }
  program.place("head");
  program.loss(program.linear(program.norm(x, d), d, words), words);
  return program.finish("transformer");
}

StepProfile unet_step(int levels) {
  TensorProgram program(2);
  int64_t side = 96;
  int64_t channels = 16;
  int32_t x = program.outside(program.bytes(3 * side * side));
  std::vector<int32_t> skips;
  for (int i = 0; i < levels; ++i) {
    program.place(layer_name("down", i));
    x = program.double_convolution(x, i == 0 ? 3 : channels / 2, channels, side);
    skips.push_back(x);
    const int64_t pooled = program.bytes(channels * side * side) / 4;
    x = program.run1({.name = "aten::max_pool2d_with_indices",
                      .reads = {x},
                      .makes = {pooled, 2 * pooled},
                      .saves = {x},
                      .saves_made = {1},
                      .us = program.elementwise(channels * side * side)});
    channels *= 2;
    side /= 2;
  }
  program.place("mid");
  x = program.double_convolution(x, channels / 2, channels, side);
  for (int i = levels - 1; i >= 0; --i) {
    program.place(layer_name("up", i));
    channels /= 2;
    side *= 2;
    const int32_t up = program.convolution(x, 2 * channels, channels, side);
    const int32_t joined = program.run1({.name = "aten::cat",
                                         .reads = {skips[i], up},
                                         .makes = {program.bytes(2 * channels * side * side)},
                                         .us = program.elementwise(4 * channels * side * side)});
    x = program.double_convolution(joined, 2 * channels, channels, side);
  }
  program.place("out");
  program.loss(program.convolution(x, channels, 4, side), 4 * side * side);
  return program.finish("unet");
}

StepProfile resnet_step(int blocks) {
  TensorProgram program(4);
  int64_t side = 48;
  int64_t channels = 32;
  int32_t x = program.outside(program.bytes(3 * side * side));
  x = program.double_convolution(x, 3, channels, side);
  for (int i = 0; i < blocks; ++i) {
    program.place(layer_name("layer", i));
    const int32_t before = x;
    x = program.write(
        "aten::relu_",
        program.batch_norm(program.convolution(x, channels, channels, side), channels, side),
        program.elementwise(2 * channels * side * side));
    x = program.batch_norm(program.convolution(x, channels, channels, side), channels, side);
    x = program.write("aten::relu_", program.add(before, x, channels * side * side),
                      program.elementwise(2 * channels * side * side));
  }
  program.place("fc");
  program.loss(program.linear(x, channels * side * side, 10), 10);
  return program.finish("resnet");
}

StepProfile encoder_decoder_step(int layers) {
  constexpr int64_t d = 512;
  TensorProgram program(6 * 256);
  int32_t x = program.outside(program.bytes(d));
  for (int i = 0; i < layers; ++i) {
    program.place(layer_name("encoder", i));
    x = program.feed_forward(program.self_attention(x, d), d);
  }
  const int32_t memory = program.norm(x, d);
  int32_t y = program.outside(program.bytes(d));
  for (int i = 0; i < layers; ++i) {
    program.place(layer_name("decoder", i));
    y = program.self_attention(y, d);
    const int32_t query = program.linear(program.norm(y, d), d, d);
    const int32_t key = program.linear(memory, d, d);
    const int32_t value = program.linear(memory, d, d);
    const int32_t read = program.attention({query, key, value}, d, 256);
    y = program.add(y, program.dropout(program.linear(read, d, d), d), d);
    y = program.feed_forward(y, d);
  }
  program.place("head");
  program.loss(program.linear(y, d, 4000), 4000);
  return program.finish("encoder_decoder");
}

StepProfile tied_weight_step(int layers) {
  constexpr int64_t d = 256;
  TensorProgram program(512);
  const int32_t stored = program.outside(4000 * d * 4);
  const int32_t weight = program.run1({.name = "aten::_to_copy",
                                       .reads = {stored},
                                       .makes = {4000 * d * 2},
                                       .us = op_us(0, 4000.0 * d * 6)});
  const int32_t ids = program.outside(program.bytes(2));
  int32_t x = program.run1({.name = "aten::embedding",
                            .reads = {weight, ids},
                            .makes = {program.bytes(d)},
                            .saves = {ids},
                            .us = program.elementwise(2 * d)});
  for (int i = 0; i < layers; ++i) {
    program.place(layer_name("h", i));
    x = program.feed_forward(x, d);
  }
  program.place("head");
  const int32_t logits = program.run1({.name = "aten::mm",
                                       .reads = {x, weight},
                                       .makes = {program.bytes(4000)},
                                       .saves = {x, weight},
                                       .us = op_us(2.0 * 512 * 4000 * d, 0)});
  program.loss(logits, 4000);
  return program.finish("tied_weight");
}

}  // namespace remat::test
