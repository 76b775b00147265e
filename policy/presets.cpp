// SPDX-License-Identifier: BSD-3-Clause

// Tables that come with remat. docs/how-to/policies.md lists them; a test compares the two.
#include <remat/policy/policy_table.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace remat {
namespace {

PolicyTable saving(const char* name, std::initializer_list<const char*> ops) {
  PolicyTable table;
  for (const char* op : ops) table.op(op, Policy::kSave);
  return table.from(name);
}

}  // namespace

PolicyTable save_matmuls() {
  return saving("save_matmuls",
                {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm",
                 "aten::mv", "aten::addmv", "aten::dot", "aten::vdot", "aten::_scaled_mm",
                 "aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::mkldnn_linear"});
}

PolicyTable save_compute_intensive() {
  PolicyTable table = save_matmuls();
  table.add(saving(
      "save_compute_intensive",
      {"aten::convolution", "aten::convolution_backward", "aten::mkldnn_rnn_layer",
       "aten::_cudnn_rnn", "aten::_scaled_dot_product_flash_attention",
       "aten::_scaled_dot_product_flash_attention_for_cpu",
       "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention",
       "aten::_scaled_dot_product_fused_attention_overrideable", "aten::_flash_attention_forward",
       "aten::_efficient_attention_forward", "aten::_cudnn_attention_forward",
       "aten::upsample_bilinear2d", "aten::_upsample_bilinear2d_aa", "aten::upsample_bicubic2d",
       "aten::_upsample_bicubic2d_aa", "aten::upsample_trilinear3d"}));
  return table.from("save_compute_intensive");
}

PolicyTable recompute_pointwise() {
  PolicyTable table;
  table.op("tag:pointwise", Policy::kRecompute).op("tag:view", Policy::kRecompute);
  // Ops that are pointwise but not tagged so by LibTorch, and copies.
  for (const char* op :
       {"aten::native_dropout", "aten::clone", "aten::_to_copy", "aten::copy", "aten::copy_",
        "aten::fill", "aten::fill_", "aten::zero_", "aten::detach", "aten::lift_fresh"}) {
    table.op(op, Policy::kRecompute);
  }
  return table.op("*", Policy::kSave).from("recompute_pointwise");
}

PolicyTable safe_defaults() {
  return saving(
      "safe_defaults",
      {// Ops whose indices or sizes depend on data: a replay may resolve near ties differently.
       "aten::topk", "aten::sort", "aten::argsort", "aten::msort", "aten::argmax", "aten::argmin",
       "aten::max.dim", "aten::min.dim", "aten::cummax", "aten::cummin", "aten::kthvalue",
       "aten::mode", "aten::median.dim", "aten::nanmedian.dim", "aten::multinomial",
       "aten::nonzero", "aten::nonzero_static", "aten::argwhere", "aten::_unique", "aten::_unique2",
       "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive",
       "aten::bincount", "aten::histc", "aten::searchsorted", "aten::bucketize",
       "aten::masked_select", "aten::_local_scalar_dense", "aten::equal",
       // Ops in which other processes take part.
       "c10d::*", "_c10d_functional::*", "_c10d_functional_autograd::*", "symm_mem::*",
       "deep_ep::*"});
}

namespace {

using Preset = std::pair<std::string_view, PolicyTable (*)()>;  // name and maker

constexpr std::array kPresets{
    Preset{"save_matmuls", save_matmuls},
    Preset{"save_compute_intensive", save_compute_intensive},
    Preset{"recompute_pointwise", recompute_pointwise},
    Preset{"safe_defaults", safe_defaults},
};

}  // namespace

PolicyTable preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.first == name) return preset.second();
  }
  const std::string text(name);
  throw std::invalid_argument(
      "[policy] preset '" + text +
      "': expected save_matmuls, save_compute_intensive, recompute_pointwise or safe_defaults, got "
      "another name. " +
      (text.find("::") == std::string::npos
           ? "Take one of these, write a table, or in Python read one with PolicyTable.load(path)."
           : "To SAVE an op write a list, policy=[\"" + text + "\"] in Python, or a table."));
}

bool PolicyRule::is_of_preset() const {
  return std::any_of(kPresets.begin(), kPresets.end(),
                     [&](const Preset& preset) { return preset.first == source; });
}

}  // namespace remat
