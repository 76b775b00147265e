// SPDX-License-Identifier: BSD-3-Clause

// Makes the recording of a transformer, event by event.
#include "recording/transformer_recording.h"

#include <algorithm>
#include <array>
#include <vector>

namespace remat::test {
namespace {

constexpr int64_t kUnit = 6'291'456;  // 2 x 1024 tokens of 768 numbers of 4 bytes
constexpr LayoutId kLayout = 1;
constexpr uint64_t kThread = 5;  // the thread's number in torch

struct LayerOp {
  const char* name;
  const char* node;
  const char* line;
  int units;          // size of its result
  int us;             // time in the forward
  int weights_units;  // size of its weights' gradient; 0: no gradient
  bool is_attention;
};

constexpr std::array<LayerOp, 10> kLayer = {{
    {"aten::native_layer_norm", "NativeLayerNormBackward0", "gpt.py:61 forward", 1, 210, 0, false},
    {"aten::addmm", "AddmmBackward0", "gpt.py:37 forward", 3, 1450, 1, false},
    {"aten::_scaled_dot_product_flash_attention", "ScaledDotProductFlashAttentionBackward0",
     "gpt.py:41 forward", 1, 2300, 0, true},
    {"aten::addmm", "AddmmBackward0", "gpt.py:44 forward", 1, 480, 1, false},
    {"aten::add.Tensor", "AddBackward0", "gpt.py:61 forward", 1, 130, 0, false},
    {"aten::native_layer_norm", "NativeLayerNormBackward0", "gpt.py:62 forward", 1, 210, 0, false},
    {"aten::addmm", "AddmmBackward0", "gpt.py:52 forward", 4, 1900, 2, false},
    {"aten::gelu", "GeluBackward0", "gpt.py:52 forward", 4, 520, 0, false},
    {"aten::addmm", "AddmmBackward0", "gpt.py:53 forward", 1, 1900, 2, false},
    {"aten::add.Tensor", "AddBackward0", "gpt.py:62 forward", 1, 130, 0, false},
}};

class Steps {
 public:
  explicit Steps(const TransformerSteps& steps) : steps_(steps) {
    recording_.strings = {""};
    recording_.layouts = {{}, {string("float32"), string("cuda:0"), {2, 1024, 768}, {}, true}};
    recording_.process = {1'790'000'000'000'000'000, 4242, string("train_gpt.py"),
                          string("2.11.0+cu128")};
    recording_.threads = {{{0, kThread, string("python3")}, 0}};
    device_ = string("cuda:0");
  }

  Recording run() {
    for (int step = 0; step < steps_.steps; ++step) {
      if (step > 0 && steps_.has_plans) plan();
      forward();
      backward();
      for (const uint64_t address : gradients_) free(address);
      gradients_.clear();
      now_ += 900'000;
      const StringId name = string("step " + std::to_string(step + 1));
      recording_.marks.push_back({{now_, name}, 0});
    }
    return std::move(recording_);
  }

 private:
  struct Layer {
    uint64_t region = 0;
    std::vector<uint64_t> kept;     // results of SAVE calls
    std::vector<uint64_t> results;  // results of the replay
    std::vector<uint64_t> sequences;
    uint64_t output = 0;
  };

  StringId string(const std::string& text) {
    const auto known = std::find(recording_.strings.begin(), recording_.strings.end(), text);
    if (known != recording_.strings.end())
      return static_cast<StringId>(known - recording_.strings.begin());
    recording_.strings.push_back(text);
    return static_cast<StringId>(recording_.strings.size() - 1);
  }

  void plan() {
    const int64_t peak = (steps_.layers + 40) * kUnit;
    recording_.plans.push_back({{now_ + 1000, string("GPT"), peak * 9 / 8, peak * 101 / 100,
                                 (steps_.layers * 18 + 30) * kUnit, string("{}")},
                                0});
  }

  OpEvent& op(const std::string& name, OpPhase phase, int us) {
    OpEvent op;
    op.begin_ns = now_ += 4'000;
    now_ += us * 1000LL * 9 / 10;
    op.end_ns = now_ + us * 100LL;
    op.number = recording_.ops.size() + 1;
    op.name = string(name);
    op.phase = phase;
    recording_.ops.push_back({op, 0});
    return recording_.ops.back();
  }

  /// Allocates memory in the newest op.
  uint64_t allocate(int64_t bytes) {
    const uint64_t address = 0x7f0000000000 + 4096 * ++allocated_;
    recording_.memory.push_back({{now_, address, bytes, device_, recording_.ops.size()}, 0});
    now_ = std::max(now_, recording_.ops.back().end_ns);
    return address;
  }

  void free(uint64_t address) {
    recording_.memory.push_back({{++now_, address, -1, device_, 0}, 0});
  }

  void forward() {
    op("aten::embedding", OpPhase::kOutside, 240);
    outside_ = {allocate(kUnit)};
    layers_.assign(static_cast<size_t>(steps_.layers), {});
    for (size_t i = 0; i < layers_.size(); ++i) forward_of(layers_[i], i);
    op("aten::addmm", OpPhase::kOutside, 9000);
    outside_.push_back(allocate(8 * kUnit));
    op("aten::_log_softmax", OpPhase::kOutside, 1800);
    outside_.push_back(allocate(8 * kUnit));
    free(outside_[1]);
    outside_[1] = 0;
  }

  void forward_of(Layer& layer, size_t number) {
    layer.region = ++regions_;
    const std::string label = number == 0 && !steps_.first_label.empty()
                                  ? steps_.first_label
                                  : "h." + std::to_string(number);
    recording_.regions.push_back({{++now_, layer.region, layer.region, 0, 0, string(label)}, 0});
    std::vector<uint64_t> dropped;
    for (size_t i = 0; i < kLayer.size(); ++i) {
      const bool keeps = kLayer[i].is_attention && steps_.keeps_attention;
      const uint64_t address = run_op(layer, i, OpPhase::kForward);
      save(layer, i, address, false, keeps);
      layer.sequences.push_back(recording_.ops.back().sequence);
      if (keeps) {
        layer.kept.push_back(address);
      } else if (i + 1 < kLayer.size()) {
        dropped.push_back(address);
      }
      layer.output = address;
    }
    for (const uint64_t address : dropped) free(address);
  }

  uint64_t run_op(const Layer& layer, size_t i, OpPhase phase) {
    const LayerOp& from = kLayer[i];
    OpEvent& made = op(from.name, phase, from.us);
    made.region = layer.region;
    made.record = static_cast<uint32_t>(i);
    made.first_slot = static_cast<uint32_t>(i);
    made.end_slot = static_cast<uint32_t>(i + 1);
    made.is_seen = true;
    if (phase == OpPhase::kForward) {
      made.sequence = ++sequence_;
      made.line = string(from.line);
      if (from.is_attention && steps_.keeps_attention) {
        made.call = string("attention");
        recording_.calls.push_back(
            {{made.begin_ns, layer.region, made.call, string("SAVE"), CallStep::kBegins, false},
             0});
      }
    }
    return allocate(from.units * kUnit);
  }

  void save(const Layer& layer, size_t slot, uint64_t address, bool is_replay, bool is_kept) {
    const RecordedTensor tensor{kLayout, address, 0};
    recording_.saves.push_back(
        {{now_, layer.region, static_cast<uint32_t>(slot), tensor, is_replay, is_kept}, 0});
  }

  void backward() {
    begin_node("LogSoftmaxBackward0", 0);
    op("aten::_log_softmax_backward_data", OpPhase::kBackward, 1900);
    const uint64_t of_logits = allocate(8 * kUnit);
    free(outside_[2]);
    end_node();
    begin_node("AddmmBackward0", 0);
    op("aten::mm", OpPhase::kBackward, 9000);
    gradient_ = allocate(kUnit);
    free(of_logits);
    end_node();
    for (size_t i = layers_.size(); i > 0; --i) backward_of(layers_[i - 1]);
    free(gradient_);
    free(outside_[0]);
  }

  void backward_of(Layer& layer) {
    replay(layer);
    free(layer.output);
    for (size_t i = kLayer.size(); i > 0; --i) {
      begin_node(kLayer[i - 1].node, layer.sequences[i - 1]);
      recording_.loads.push_back({{now_, layer.region, static_cast<uint32_t>(i - 1)}, 0});
      op("aten::mm", OpPhase::kBackward, kLayer[i - 1].us);
      const uint64_t gradient =
          allocate(kLayer[(i + kLayer.size() - 2) % kLayer.size()].units * kUnit);
      free(gradient_);
      gradient_ = gradient;
      const int64_t weights = kLayer[i - 1].weights_units;
      uint64_t of_weights = 0;
      if (weights > 0) {
        op("aten::mm", OpPhase::kBackward, kLayer[i - 1].us);
        of_weights = allocate(weights * kUnit * 3 / 8);
      }
      if (layer.results[i - 1] != 0) free(layer.results[i - 1]);
      end_node();
      if (of_weights != 0) accumulate(of_weights);
    }
    for (const uint64_t address : layer.kept) free(address);
  }

  void accumulate(uint64_t address) {
    begin_node("torch::autograd::AccumulateGrad", OpEvent::kNoSequence);
    op("aten::detach", OpPhase::kBackward, 2).arguments = {{kLayout, address, 0}};
    now_ = recording_.ops.back().end_ns;
    end_node();
    gradients_.push_back(address);
  }

  void replay(Layer& layer) {
    recording_.replays.push_back({{++now_, 0, layer.region, false, false}, 0});
    for (size_t i = 0; i < kLayer.size(); ++i) {
      const bool is_kept = kLayer[i].is_attention && steps_.keeps_attention;
      layer.results.push_back(is_kept ? 0 : run_op(layer, i, OpPhase::kReplay));
      if (!is_kept) save(layer, i, layer.results.back(), true, false);
    }
    recording_.replays.back().end_ns = ++now_;
  }

  void begin_node(const char* name, uint64_t sequence) {
    recording_.nodes.push_back({{++now_, 0, string(name), sequence, kThread}, 0});
    node_ = recording_.nodes.size() - 1;
  }
  void end_node() { recording_.nodes[node_].end_ns = ++now_; }

  const TransformerSteps steps_;
  Recording recording_;
  TimeNs now_ = 1'000'000;
  StringId device_ = 0;
  uint64_t allocated_ = 0;
  uint64_t regions_ = 0;
  uint64_t sequence_ = 0;
  size_t node_ = 0;
  uint64_t gradient_ = 0;
  std::vector<uint64_t> outside_;
  std::vector<uint64_t> gradients_;
  std::vector<Layer> layers_;
};

}  // namespace

Recording transformer_recording(const TransformerSteps& steps) {
  return Steps(steps).run();
}

size_t events_of(const Recording& recording) {
  return recording.ops.size() + recording.memory.size() + recording.saves.size() +
         recording.loads.size() + recording.nodes.size() + recording.regions.size() +
         recording.replays.size() + recording.calls.size() + recording.marks.size();
}

}  // namespace remat::test
