// SPDX-License-Identifier: BSD-3-Clause

// Tensors that regions and graphs hold, by storage.
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/error_text.h"

namespace remat {
namespace {

constexpr size_t kTensorBytes = 4 * 8 * 8;  // bytes of a float32 [8, 8]

at::Tensor reported_input() {
  return torch::rand({8, 8}).requires_grad_();
}

using Make = std::function<std::vector<std::pair<std::string, at::Tensor>>(const at::Tensor&)>;

/// Returns 2x; saves the tensors that the thread's `make` returns.
struct Saves : torch::autograd::Function<Saves> {
  static thread_local Make make;
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    auto handle = get_handle(ctx, "op", Policy::kSave);
    handle.save_for_backward(make(x));
    return handle.record_outputs(x * 2);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0] * 2};
  }
};

thread_local Make Saves::make;

/// Returns the report at the end of a region that makes one call of Saves.
RegionSaves saves_of(Make make) {
  Saves::make = std::move(make);
  std::optional<RegionSaves> found;
  const at::Tensor y = checkpoint({.name = "layer"})([&](const at::Tensor& x) {
    at::Tensor result = Saves::apply(x.sin());
    found = current_region_saves();
    return result;
  })(reported_input());
  REQUIRE(found);
  return *found;
}

at::Tensor layer(const std::string& name, const at::Tensor& x) {
  return checkpoint({.name = name})([](const at::Tensor& t) {
    return native_op([](const at::Tensor& in) { return in.exp(); }, "exp", Policy::kSave)(t.sin());
  })(x);
}

}  // namespace

TEST_CASE("Outside of regions there is no current one", "[inspect][saved_tensors_report]") {
  CHECK_FALSE(current_region_saves());
}

TEST_CASE("Names of one tensor share a line, other views have their own",
          "[inspect][saved_tensors_report]") {
  const RegionSaves saves = saves_of([](const at::Tensor& x) {
    const at::Tensor power = x.exp();
    return std::vector<std::pair<std::string, at::Tensor>>{
        {"power", power}, {"same", power.detach()}, {"rows", power.narrow(0, 2, 4)}};
  });
  REQUIRE(saves.calls.size() == 1);
  REQUIRE(saves.calls[0].storages.size() == 1);
  const SavedStorage& storage = saves.calls[0].storages[0];
  CHECK(saves.bytes == kTensorBytes);
  CHECK(storage.used_bytes == kTensorBytes);
  REQUIRE(storage.views.size() == 2);
  CHECK(storage.views[0].names == std::vector<std::string>{"power", "same"});
  CHECK(storage.views[1].bytes == kTensorBytes / 2);
  CHECK(saves.str() == on_default_device("layer: 256 B resident in 1 storage\n"
                                         "layer::op: 256 B\n"
                                         "  256 B  power = same  [8, 8]  float32 on cpu\n"
                                         "         - rows        [4, 8]  view of 128 B"));
}

TEST_CASE("A storage held by parts of it says how much of it they use",
          "[inspect][saved_tensors_report]") {
  // Rows 0 to 3 and 2 to 5 of 8 cover 6 of 8 rows; a column of 8 rows is 8 runs of 4 B.
  const RegionSaves rows = saves_of([](const at::Tensor& x) {
    const at::Tensor power = x.exp();
    return std::vector<std::pair<std::string, at::Tensor>>{{"q", power.narrow(0, 0, 4)},
                                                           {"k", power.narrow(0, 2, 4)}};
  });
  CHECK(rows.calls[0].storages[0].used_bytes == kTensorBytes * 6 / 8);
  CHECK_THAT(rows.str(), ContainsSubstring("256 B  base of q, k"));
  CHECK_THAT(rows.str(), ContainsSubstring("held for 192 B of 256 B"));
  const RegionSaves column = saves_of([](const at::Tensor& x) {
    return std::vector<std::pair<std::string, at::Tensor>>{{"c", x.exp().select(1, 3)}};
  });
  CHECK(column.calls[0].storages[0].used_bytes == 8 * 4);
}

TEST_CASE("What an argument of the call gives is rebuilt and not held",
          "[inspect][saved_tensors_report]") {
  const at::Tensor y = checkpoint({.name = "layer"})([](const at::Tensor& x) {
    return native_op([](const at::Tensor& t) { return t.sin(); }, "op", Policy::kSave)(x.exp());
  })(reported_input());
  const RegionSaves saves = saved_tensors_report().regions.at(0);
  CHECK(saves.bytes == 0);
  CHECK(saves.rebuilt == 1);
  CHECK(saves.str() ==
        "layer: 0 B resident in 0 storages\n  + 1 save rebuilt on recompute, not resident");
}

TEST_CASE("Regions that hold alike are one group, in natural order",
          "[inspect][saved_tensors_report]") {
  const at::Tensor x = reported_input();
  std::vector<at::Tensor> outputs;
  for (const char* name : {"layer.10", "layer.2", "layer.1", "layer.11"}) {
    outputs.push_back(layer(name, x));
  }
  const SavedTensorsReport report = saved_tensors_report();
  REQUIRE(report.regions.size() == 4);
  CHECK(report.regions[0].region == "layer.1");
  CHECK(report.regions[3].region == "layer.11");
  CHECK(report.region_bytes == 4 * kTensorBytes);
  CHECK_FALSE(report.nodes);
  CHECK_THAT(report.str(),
             ContainsSubstring("\n  256 B  x4  layer.1-2, layer.10-11  (1 storage each)\n"));
}

TEST_CASE("A graph is walked by what the caller can see of its nodes",
          "[inspect][saved_tensors_report]") {
  const at::Tensor x = reported_input();
  const at::Tensor y = layer("layer", x);
  const at::Tensor saved = torch::ones({3});
  const at::Tensor weight = torch::ones({5}).requires_grad_();
  size_t nodes = 0;
  // Each node is visited once, although the add reads the region's output twice.
  const VisitSaved visit = [&](const GraphNode& /*node*/,
                               const std::function<void(const at::Tensor&)>& found) {
    ++nodes;
    found(saved);
    found(weight.view({5, 1}));
    found(y.detach());  // the region's output
  };
  const SavedTensorsReport report = saved_tensors_report({{y + y}}, visit);
  CHECK(nodes == 4);  // AddBackward0, ExpBackward0, SinBackward0, AccumulateGrad
  REQUIRE(report.nodes);
  REQUIRE(report.nodes->size() == 1);
  CHECK(report.node_bytes == 12);
  CHECK_THAT((*report.nodes)[0].nodes, ContainsSubstring("AddBackward0"));
  CHECK_THAT(report.str(),
             ContainsSubstring("saved for backward: 268 B resident, 256 B of them in 1 region and "
                               "12 B outside of regions"));
}

TEST_CASE("Words on a tensor are found outside of the region that is open",
          "[inspect][saved_tensors_report]") {
  std::string text;
  const auto outputs = checkpoint({.name = "layer"})([&](const at::Tensor& x) {
    at::Tensor y =
        native_op([](const at::Tensor& t) { return t.exp(); }, "exp", Policy::kSave)(x.sin());
    text = current_region_saves()->str([](const at::Tensor& tensor) {
      return tensor.sum().requires_grad() ? "in the graph" : "detached";
    });
    return std::vector<at::Tensor>{y, x.cos().exp()};
  })(reported_input());
  CHECK_THAT(text, ContainsSubstring(
                       on_default_device("saved.0 (output 0)  [8, 8]  float32 on cpu  detached")));
  // The sum runs outside the region. As an op of the region it would have its operand kept for the
  // replay, in a row "output 0".
  CHECK(outputs.size() == 2);
  CHECK_THAT(saved_tensors_report().str(), !ContainsSubstring("B  output 0"));
}

TEST_CASE("Two traces of calls collect at the same time, each for its thread",
          "[inspect][call_trace]") {
  CallTrace outer;
  CallTrace never([] { return false; });
  {
    const CallTrace inner;
    layer("layer", reported_input()).sum().backward();
    CHECK(inner.str() == "remat trace\nexp: save");
  }
  CHECK(outer.begin_scope("block", "first"));
  layer("layer", reported_input());
  outer.end_scope();
  outer.stop();
  layer("layer", reported_input());
  CHECK(outer.str() == "remat trace\nexp: save\nblock [first]\n  exp: save");
  REQUIRE(outer.entries().size() == 2);
  CHECK(outer.entries()[1].is_scope);
  CHECK(outer.entries()[1].entries[0].policy == Policy::kSave);
  CHECK(never.entries().empty());
  CHECK_THAT(error_text([&] { outer.begin_scope(""); }), ContainsSubstring("must be non-empty"));
}

}  // namespace remat
