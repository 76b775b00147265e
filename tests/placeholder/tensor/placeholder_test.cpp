// SPDX-License-Identifier: BSD-3-Clause

// Placeholders of slots: metadata, graphs, threads, serialisation.
#include <remat/placeholder/placeholder.h>

#include "support/placeholder_probe.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include <sstream>
#include <thread>
#include <vector>

namespace {

using at::Tensor;

TEST_CASE("Metadata of a slot is that of the tensor it stands for", "[placeholder]") {
  const Tensor real = real_base();
  const Tensor x = slot_like(real);
  CHECK(x.sizes() == real.sizes());
  CHECK(x.strides() == real.strides());
  CHECK(x.storage_offset() == real.storage_offset());
  CHECK(x.storage().nbytes() == real.storage().nbytes());
  CHECK(x.numel() == 24);
  CHECK(x.nbytes() == 96);
  CHECK(x.dtype() == real.dtype());
  CHECK(x.device() == at::Device("cpu"));
  CHECK(x.is_cpu());
  CHECK(x.layout() == at::kStrided);
  CHECK_FALSE(x.is_contiguous());
  CHECK(x.is_same_size(real));
  CHECK(x.options().device() == at::Device("cpu"));
  CHECK_FALSE(x.requires_grad());
  CHECK(x.has_storage());
  CHECK(at::result_type(x, at::ones({1}, at::kDouble)) == at::kDouble);
  CHECK(remat::placeholder_info(x[1]).call == "s");
  CHECK(remat::placeholder_info(x.view(at::kInt)).op == "aten::mm");
}

TEST_CASE("Tensors made like a slot are real", "[placeholder]") {
  const Tensor x = slot();
  for (const Tensor& made :
       {at::zeros_like(x), at::ones_like(x), at::empty_like(x), at::full_like(x, 2),
        at::rand_like(x), at::randn_like(x), at::randint_like(x, 5), x.new_zeros({4, 6}),
        x.new_ones({4, 6}), x.new_full({4, 6}, 1), x.new_empty({4, 6}),
        x.new_empty_strided({4, 6}, {6, 1})}) {
    CHECK_FALSE(remat::is_placeholder(made));
    CHECK(made.sizes() == x.sizes());
    CHECK(made.device() == x.device());
    CHECK_NOTHROW(made.data_ptr());
  }
  CHECK(at::ones_like(x).sum().item<float>() == 24);
  CHECK(x.to(at::kMeta).is_meta());
}

TEST_CASE("Other dtypes and empty tensors", "[placeholder]") {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kDouble, at::kLong, at::kBool}) {
    check_raises({"aten::eq.Scalar", [](const Tensor& x) { (void)x.eq(1); }}, slot({3}, dtype));
  }
  const Tensor none = slot({0, 3});
  CHECK(none.view({3, 0}).sizes() == at::IntArrayRef({3, 0}));
  check_raises({"aten::sum", [](const Tensor& x) { (void)x.sum(); }}, none);
  check_raises({"aten::_local_scalar_dense", [](const Tensor& x) { (void)x.item(); }}, slot({}));
}

TEST_CASE("Serialisation of a slot raises", "[placeholder]") {
  check_raises({kMemory,
                [](const Tensor& x) {
                  std::ostringstream out;
                  torch::save(x, out);
                }},
               slot());
  check_raises({kMemory, [](const Tensor& x) { (void)torch::jit::pickle_save(x); }}, slot());
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/,
                                               torch::autograd::tensor_list grads) {
    return grads;
  }
};

TEST_CASE("Slots stand in graphs like other tensors", "[placeholder]") {
  Tensor x = slot().requires_grad_();
  CHECK(x.is_leaf());
  CHECK(x.view({24}).grad_fn()->name() == "ViewBackward0");
  CHECK(x.t().is_view());
  CHECK(x.detach().requires_grad() == false);
  check_raises({"aten::sin", [](const Tensor& t) { (void)t.sin(); }}, x);
  check_raises({"aten::mul.Scalar", [](const Tensor& t) { Doubled::apply(t); }}, x);
  // Gradients flow through views of a slot, which read none of its data.
  const Tensor y = x.t().view({6, 2, 2});
  y.backward(at::ones({6, 2, 2}));
  CHECK(x.grad().sizes() == x.sizes());
  CHECK_FALSE(remat::is_placeholder(x.grad()));
  CHECK(x.grad().sum().item<float>() == 24);
}

TEST_CASE("An op that saves a slot raises when it is read in backward", "[placeholder]") {
  const Tensor x = slot();
  const torch::autograd::SavedVariable saved(x, false);
  check_raises({"aten::sin", [&](const Tensor&) { (void)saved.unpack().sin(); }}, x);
}

TEST_CASE("Inference mode and no_grad make no difference", "[placeholder]") {
  const Read probe{"aten::sin", [](const Tensor& x) { (void)x.sin(); }};
  const Tensor x = slot();
  {
    const at::NoGradGuard guard;
    check_raises(probe, x);
    CHECK(remat::is_placeholder(x.t()));
  }
  const c10::InferenceMode mode;
  check_raises(probe, x);
  check_raises(probe, slot());
  CHECK(remat::is_placeholder(slot().t()));
}

TEST_CASE("Other threads see the same", "[placeholder]") {
  const Tensor x = slot();
  std::string text;
  bool view = false;
  std::thread thread([&] {
    text = error_text([&] { (void)x.sum(); });
    view = remat::is_placeholder(x.t());
  });
  thread.join();
  CHECK_THAT(text, ContainsSubstring("call 's' (aten::mm) of region 'r'"));
  CHECK(view);
}

TEST_CASE("set_data moves the placeholder with the tensor", "[placeholder]") {
  const Tensor x = slot();
  Tensor y = slot({2, 2});
  y.set_data(x.t());
  CHECK(y.sizes() == at::IntArrayRef({6, 4}));
  CHECK(remat::is_placeholder(y));
  check_raises({"aten::sum", [](const Tensor& t) { (void)t.sum(); }}, y);
}

TEST_CASE("The message names the remedies", "[placeholder]") {
  const std::string text = error_text([] { (void)slot().sum(); });
  CHECK_THAT(text, ContainsSubstring("Keep or compute the value, by recompute_needs_tensor()"));
}

TEST_CASE("A tensor with data is never taken for a placeholder", "[placeholder]") {
  CHECK_FALSE(remat::is_placeholder(Tensor()));
  CHECK_FALSE(remat::is_placeholder(at::ones({2})));
  CHECK_FALSE(remat::is_placeholder(at::ones({2}, at::kMeta)));
  CHECK_FALSE(remat::is_placeholder(at::eye(2).to_sparse()));
  CHECK_THROWS_WITH(remat::placeholder_info(at::ones({2, 3})),
                    ContainsSubstring("expected a placeholder, got float32 [2, 3] on cpu"));
  CHECK_THROWS_WITH(slot_like(at::eye(2).to_sparse()),
                    ContainsSubstring("expected a strided tensor, got float32 [2, 2] on cpu"));
}

}  // namespace
