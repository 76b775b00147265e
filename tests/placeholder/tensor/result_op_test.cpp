// SPDX-License-Identifier: BSD-3-Clause

// An access to a placeholder's data raises and never reads memory: the pointer is null, so a read
// that is not stopped ends the process.
#include "support/placeholder_probe.h"

#include <ATen/DLConvertor.h>

#include <sstream>
#include <vector>

namespace {

using at::Tensor;

const at::TensorOptions kLong(at::kLong);

TEST_CASE("Direct reads of the memory raise", "[placeholder]") {
  const std::vector<Read> probes = {
      {kMemory, [](const Tensor& x) { (void)x.data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x.const_data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x.mutable_data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x.data_ptr<float>(); }},
      {kMemory, [](const Tensor& x) { (void)x.const_data_ptr<float>(); }},
      {kMemory, [](const Tensor& x) { (void)x.accessor<float, 2>()[0][0]; }},
      {kMemory, [](const Tensor& x) { (void)x.storage().data(); }},
      {kMemory, [](const Tensor& x) { (void)x.storage().mutable_data(); }},
      {kMemory, [](const Tensor& x) { (void)x.storage().data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x.view(at::kInt).data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x[1].detach().data_ptr(); }},
      {kMemory, [](const Tensor& x) { (void)x.data().data_ptr(); }},
      {kMemory, [](const Tensor& x) { at::toDLPack(x); }},
      // A CPU tensor that is set to the placeholder's storage.
      {kMemory,
       [](const Tensor& x) {
         at::empty({0}).set_(x.storage(), 0, {4, 6}, {6, 1}).add_(1);
       }},
  };
  for (const Read& probe : probes) check_raises(probe, slot());
}

TEST_CASE("Reads by the host raise", "[placeholder]") {
  const std::vector<Read> probes = {
      {"aten::_local_scalar_dense", [](const Tensor& x) { (void)x[0][0].item(); }},
      {"aten::_local_scalar_dense", [](const Tensor& x) { (void)x[0][0].item<double>(); }},
      {"aten::_local_scalar_dense", [](const Tensor& x) { (void)x[0][0].is_nonzero(); }},
      {"aten::equal",
       [](const Tensor& x) {
         (void)x.equal(at::zeros({4, 6}));
       }},
      {"aten::equal",
       [](const Tensor& x) {
         (void)at::zeros({4, 6}).equal(x);
       }},
      {"aten::allclose", [](const Tensor& x) { (void)x.allclose(x); }},
      {"aten::nonzero", [](const Tensor& x) { (void)x.nonzero(); }},
      {"aten::masked_select",
       [](const Tensor& x) {
         (void)x.masked_select(at::ones({4, 6}, at::kBool));
       }},
      {"aten::_unique2", [](const Tensor& x) { (void)at::_unique2(x); }},
      {"aten::copy_", [](const Tensor& x) { std::ostringstream() << x; }},
      {"aten::copy_", [](const Tensor& x) { (void)x.to(at::kDouble); }},
      {"aten::copy_", [](const Tensor& x) { (void)x.to(at::kCPU, at::kFloat, false, true); }},
      {"aten::copy_",
       [](const Tensor& x) {
         at::zeros({4, 6}).copy_(x);
       }},
      {"aten::copy_",
       [](const Tensor& x) {
         x.copy_(at::zeros({4, 6}));
       }},
      {"aten::clone", [](const Tensor& x) { (void)x.clone(); }},
      {"aten::clone", [](const Tensor& x) { (void)x.t().contiguous(); }},
      {"aten::clone", [](const Tensor& x) { (void)x.t().reshape({-1}); }},
  };
  for (const Read& probe : probes) check_raises(probe, slot());
}

TEST_CASE("Ops of every class raise", "[placeholder]") {
  const std::vector<Read> probes = {
      {"aten::add.Scalar", [](const Tensor& x) { (void)(x + 1); }},
      {"aten::add.Tensor",
       [](const Tensor& x) {
         (void)(at::ones({4, 6}) + x);
       }},
      {"aten::mul.Tensor", [](const Tensor& x) { (void)(x * x); }},
      {"aten::sin", [](const Tensor& x) { (void)x.sin(); }},
      {"aten::gelu", [](const Tensor& x) { (void)at::gelu(x); }},
      {"aten::relu", [](const Tensor& x) { (void)x.relu(); }},
      {"aten::where.self",
       [](const Tensor& x) {
         (void)at::where(at::ones({4, 6}, at::kBool), x, x);
       }},
      {"aten::gt.Scalar", [](const Tensor& x) { (void)(x > 0); }},
      {"aten::sum", [](const Tensor& x) { (void)x.sum(); }},
      {"aten::mean.dim", [](const Tensor& x) { (void)x.mean(1); }},
      {"aten::max", [](const Tensor& x) { (void)x.max(); }},
      {"aten::argmax", [](const Tensor& x) { (void)x.argmax(); }},
      {"aten::var.correction", [](const Tensor& x) { (void)x.var(); }},
      {"aten::cumsum", [](const Tensor& x) { (void)x.cumsum(0); }},
      {"aten::_softmax", [](const Tensor& x) { (void)x.softmax(1); }},
      {"aten::mm",
       [](const Tensor& x) {
         (void)x.mm(at::ones({6, 2}));
       }},
      {"aten::mm",
       [](const Tensor& x) {
         (void)at::ones({2, 4}).matmul(x);
       }},
      {"aten::mv", [](const Tensor& x) { (void)x.matmul(at::ones({6})); }},
      {"aten::bmm",
       [](const Tensor& x) {
         (void)x.unsqueeze(0).bmm(at::ones({1, 6, 2}));
       }},
      {"aten::addmm",
       [](const Tensor& x) {
         (void)at::linear(x, at::ones({3, 6}), at::ones({3}));
       }},
      {"aten::convolution",
       [](const Tensor& x) {
         (void)at::conv1d(x, at::ones({1, 4, 3}));
       }},
      {"aten::convolution",
       [](const Tensor& x) {
         (void)at::conv2d(at::ones({1, 1, 8, 8}), x.view({1, 1, 4, 6}));
       }},
      {"aten::native_layer_norm", [](const Tensor& x) { (void)at::layer_norm(x, {6}); }},
      {"aten::native_batch_norm",
       [](const Tensor& x) { (void)at::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); }},
      {"aten::native_group_norm", [](const Tensor& x) { (void)at::group_norm(x, 2); }},
      {"aten::index.Tensor", [](const Tensor& x) { (void)x.index({at::zeros({2}, kLong)}); }},
      {"aten::index_select",
       [](const Tensor& x) { (void)x.index_select(0, at::zeros({2}, kLong)); }},
      {"aten::gather",
       [](const Tensor& x) {
         (void)x.gather(0, at::zeros({1, 6}, kLong));
       }},
      {"aten::scatter.value",
       [](const Tensor& x) {
         (void)x.scatter(0, at::zeros({1, 6}, kLong), 1);
       }},
      {"aten::index_put_",
       [](const Tensor& x) { Tensor(x).index_put_({at::zeros({2}, kLong)}, at::ones({6})); }},
      {"aten::embedding", [](const Tensor& x) { (void)at::embedding(x, at::zeros({2}, kLong)); }},
      {"aten::cat",
       [](const Tensor& x) {
         (void)at::cat({at::ones({4, 6}), x});
       }},
      {"aten::stack",
       [](const Tensor& x) {
         (void)at::stack({x, x});
       }},
      {"aten::sort", [](const Tensor& x) { (void)x.sort(); }},
      {"aten::topk", [](const Tensor& x) { (void)x.topk(2); }},
      {"aten::repeat",
       [](const Tensor& x) {
         (void)x.repeat({2, 2});
       }},
      {"aten::flip", [](const Tensor& x) { (void)x.flip(0); }},
      {"aten::tril", [](const Tensor& x) { (void)x.tril(); }},
      {"aten::constant_pad_nd",
       [](const Tensor& x) {
         (void)at::constant_pad_nd(x, {1, 1});
       }},
      {"aten::add_.Scalar", [](const Tensor& x) { Tensor(x).add_(1); }},
      {"aten::add_.Tensor",
       [](const Tensor& x) {
         at::ones({4, 6}).add_(x);
       }},
      {"aten::zero_", [](const Tensor& x) { Tensor(x).zero_(); }},
      {"aten::fill_.Scalar", [](const Tensor& x) { Tensor(x).fill_(1); }},
      {"aten::relu_", [](const Tensor& x) { Tensor(x).relu_(); }},
      {"aten::resize_", [](const Tensor& x) { Tensor(x).resize_({100}); }},
      {"aten::set_", [](const Tensor& x) { Tensor(x).set_(); }},
      {"aten::set_.source_Tensor", [](const Tensor& x) { Tensor(x).set_(at::ones({2})); }},
      {"aten::add.out",
       [](const Tensor& x) {
         Tensor out = x;
         at::add_out(out, at::ones({4, 6}), at::ones({1}));
       }},
      {"aten::mm.out",
       [](const Tensor& x) {
         Tensor out = at::empty({0});
         at::mm_out(out, x, at::ones({6, 2}));
       }},
      {"aten::_foreach_add.Scalar",
       [](const Tensor& x) {
         (void)at::_foreach_add({at::ones({2}), x}, 1);
       }},
      {"aten::_foreach_mul_.Scalar", [](const Tensor& x) { at::_foreach_mul_({x}, 1); }},
      {"aten::uniform_", [](const Tensor& x) { Tensor(x).uniform_(); }},
      {"aten::normal_", [](const Tensor& x) { Tensor(x).normal_(); }},
      {"aten::bernoulli", [](const Tensor& x) { (void)x.bernoulli(); }},
      {"aten::multinomial", [](const Tensor& x) { (void)x.multinomial(2); }},
      {"aten::_fft_r2c", [](const Tensor& x) { (void)at::fft_rfft(x); }},
      {"aten::linalg_vector_norm", [](const Tensor& x) { (void)at::linalg_vector_norm(x); }},
      {"aten::_linalg_svd", [](const Tensor& x) { (void)at::linalg_svd(x); }},
      {"aten::max_pool2d_with_indices",
       [](const Tensor& x) { (void)at::max_pool2d_with_indices(x.unsqueeze(0), 2); }},
      {"aten::mse_loss",
       [](const Tensor& x) {
         (void)at::mse_loss(x, at::ones({4, 6}));
       }},
      {"aten::_cdist_forward", [](const Tensor& x) { (void)at::_cdist_forward(x, x, 2, 0); }},
  };
  for (const Read& probe : probes) check_raises(probe, slot());
}

}  // namespace
