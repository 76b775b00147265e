// SPDX-License-Identifier: BSD-3-Clause

// Records values and compares their bytes.
#include "matrix/outcome.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <c10/util/irange.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <typeinfo>

#include "support/default_device.h"

namespace remat::matrix {
namespace {

/// Bytes are compared, not numbers: NaN equals NaN, and 0 is not -0.
std::string difference(const at::Tensor& expected, const at::Tensor& got) {
  if (expected.defined() != got.defined()) return got.defined() ? "only there" : "not there";
  if (!expected.defined()) return "";
  if (expected.dtype() != got.dtype()) return c10::str(got.dtype(), ", not ", expected.dtype());
  if (expected.sizes() != got.sizes()) return c10::str(got.sizes(), ", not ", expected.sizes());
  if (std::memcmp(expected.const_data_ptr(), got.const_data_ptr(), expected.nbytes()) == 0)
    return "";
  return c10::str("off by ", (expected.to(at::kDouble) - got.to(at::kDouble)).abs().max().item());
}

std::string first_sentence(const std::string& message) {
  return message.substr(0, std::min(message.find(". "), message.find('\n')));
}

}  // namespace

void Outcome::add(std::string name, const at::Tensor& value) {
  const bool defined = value.defined();
  values_.emplace_back(
      std::move(name),
      defined ? value.detach().cpu().clone(at::MemoryFormat::Contiguous) : at::Tensor());
}

void Outcome::add_all(const std::string& name, const Tensors& values) {
  for (const auto i : c10::irange(values.size())) add(c10::str(name, "[", i, "]"), values[i]);
}

void Outcome::add_grads(const std::string& name, const Tensors& leaves) {
  for (const auto i : c10::irange(leaves.size())) {
    add(c10::str(name, "[", i, "].grad"), leaves[i].grad());
  }
}

void Outcome::add_process_state() {
  add("generator", at::globalContext().defaultGenerator(default_device()).get_state());
  const at::Context& context = at::globalContext();
  const std::array<int64_t, 5> settings = {
      context.userEnabledFlashSDP(), context.userEnabledMathSDP(),
      at::autocast::is_autocast_enabled(default_device().type()),
      at::autocast::is_autocast_cache_enabled(), torch::autograd::AnomalyMode::is_enabled()};
  add("settings", at::tensor(settings, at::kCPU));
}

void Outcome::set_error(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  error_ = c10::demangle(typeid(error).name()) + ": " +
           first_sentence(torch_error ? torch_error->msg() : error.what());
}

std::string Outcome::differences(const Outcome& other) const {
  std::string all;
  if (error_ != other.error_) {
    all += c10::str("error: \"", other.error_, "\", not \"", error_, "\"\n");
  }
  if (values_.size() != other.values_.size()) {
    all += c10::str(other.values_.size(), " values, not ", values_.size(), "\n");
  }
  for (const auto i : c10::irange(std::min(values_.size(), other.values_.size()))) {
    const std::string found = difference(values_[i].second, other.values_[i].second);
    if (!found.empty()) all += c10::str(values_[i].first, ": ", found, "\n");
  }
  return all;
}

}  // namespace remat::matrix
