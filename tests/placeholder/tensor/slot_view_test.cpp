// SPDX-License-Identifier: BSD-3-Clause

// Views of placeholders, compared with views of real tensors.
#include <remat/placeholder/placeholder.h>

#include "support/placeholder_probe.h"

#include <vector>

namespace {

using at::Tensor;

struct View {
  std::string name;
  std::function<Tensor(Tensor)> view;
};

void check_same_view(const View& view, const Tensor& base) {
  INFO(view.name);
  const Tensor placeholder = slot_like(base);
  const Tensor expected = view.view(base);
  const Tensor got = view.view(placeholder);
  CHECK(remat::is_placeholder(got));
  CHECK(got.sizes() == expected.sizes());
  CHECK(got.strides() == expected.strides());
  CHECK(got.storage_offset() == expected.storage_offset());
  CHECK(got.scalar_type() == expected.scalar_type());
  CHECK(got.device() == expected.device());
  CHECK(got.is_conj() == expected.is_conj());
  CHECK(got.storage().unsafeGetStorageImpl() == placeholder.storage().unsafeGetStorageImpl());
}

TEST_CASE("Views have the geometry of real ones and share the storage", "[placeholder]") {
  const std::vector<View> views = {
      {"view",
       [](Tensor x) {
         return x.view({2, 2, 6});
       }},
      {"view_as",
       [](Tensor x) {
         return x.view_as(at::zeros({2, 2, 2, 3}));
       }},
      {"view(dtype)", [](Tensor x) { return x.view(at::kInt); }},
      {"view(smaller dtype)", [](Tensor x) { return x.view(at::kHalf); }},
      {"reshape",
       [](Tensor x) {
         return x.reshape({4, 2, 3});
       }},
      {"unflatten",
       [](Tensor x) {
         return x.unflatten(1, {2, 3});
       }},
      {"transpose", [](Tensor x) { return x.transpose(0, 1); }},
      {"t", [](Tensor x) { return x.t(); }},
      {"mT", [](Tensor x) { return x.mT(); }},
      {"permute",
       [](Tensor x) {
         return x.permute({1, 0});
       }},
      {"movedim", [](Tensor x) { return x.movedim(0, 1); }},
      {"swapaxes", [](Tensor x) { return x.swapaxes(0, 1); }},
      {"slice", [](Tensor x) { return x.slice(1, 1, 6, 2); }},
      {"index by slices",
       [](Tensor x) {
         using namespace at::indexing;
         return x.index({Slice(1, 3), Slice(None, None, 3)});
       }},
      {"select", [](Tensor x) { return x.select(1, 3); }},
      {"narrow", [](Tensor x) { return x.narrow(0, 1, 2); }},
      {"expand",
       [](Tensor x) {
         return x.unsqueeze(0).expand({3, 4, 6});
       }},
      {"broadcast_to",
       [](Tensor x) {
         return x.broadcast_to({2, 4, 6});
       }},
      {"squeeze", [](Tensor x) { return x.narrow(0, 2, 1).squeeze(); }},
      {"squeeze(dim)", [](Tensor x) { return x.narrow(0, 2, 1).squeeze(0); }},
      {"unsqueeze", [](Tensor x) { return x.unsqueeze(1); }},
      {"unfold", [](Tensor x) { return x.unfold(1, 3, 2); }},
      {"split", [](Tensor x) { return x.split(2, 1)[2]; }},
      {"split_with_sizes",
       [](Tensor x) {
         return x.split_with_sizes({1, 3}, 0)[1];
       }},
      {"tensor_split", [](Tensor x) { return x.tensor_split(4, 1)[3]; }},
      {"chunk", [](Tensor x) { return x.chunk(3, 1)[1]; }},
      {"unbind", [](Tensor x) { return x.unbind(1)[4]; }},
      {"as_strided",
       [](Tensor x) {
         return x.as_strided({2, 2}, {3, 1}, 4);
       }},
      {"diagonal", [](Tensor x) { return x.diagonal(1); }},
      {"detach", [](Tensor x) { return x.detach(); }},
      {"alias", [](Tensor x) { return at::alias(x); }},
      {"data", [](Tensor x) { return x.data(); }},
      {"tensor_data", [](Tensor x) { return x.tensor_data(); }},
      {"variable_data", [](Tensor x) { return x.variable_data(); }},
      {"_reshape_alias",
       [](Tensor x) {
         return at::_reshape_alias(x, {6, 4}, {1, 8});
       }},
      {"_unsafe_view",
       [](Tensor x) {
         return at::_unsafe_view(x, {4, 1, 6});
       }},
      {"lift_fresh", [](Tensor x) { return at::lift_fresh(x); }},
      {"contiguous on a row", [](Tensor x) { return x[1].contiguous(); }},
      {"to the same", [](Tensor x) { return x.to(at::kFloat).cpu(); }},
      {"t_",
       [](Tensor x) {
         Tensor y = x.detach();
         return y.t_();
       }},
      {"transpose_",
       [](Tensor x) {
         Tensor y = x.detach();
         return y.transpose_(0, 1);
       }},
      {"squeeze_",
       [](Tensor x) {
         Tensor y = x.narrow(0, 1, 1);
         return y.squeeze_(0);
       }},
      {"unsqueeze_",
       [](Tensor x) {
         Tensor y = x.detach();
         return y.unsqueeze_(0);
       }},
      {"as_strided_",
       [](Tensor x) {
         Tensor y = x.detach();
         return y.as_strided_({2}, {8}, 1);
       }},
      {"detach_",
       [](Tensor x) {
         Tensor y = x.detach();
         return y.detach_();
       }},
  };
  for (const View& view : views) check_same_view(view, real_base());
}

TEST_CASE("Views of complex slots keep their conjugate bit", "[placeholder]") {
  const std::vector<View> views = {
      {"view_as_real", [](Tensor x) { return at::view_as_real(x); }},
      {"real", [](Tensor x) { return at::real(x); }},
      {"imag", [](Tensor x) { return at::imag(x); }},
      {"conj", [](Tensor x) { return x.conj(); }},
      {"conj, then a view", [](Tensor x) { return x.conj().t(); }},
      {"conj twice", [](Tensor x) { return x.conj().conj(); }},
      {"view_as_complex", [](Tensor x) { return at::view_as_complex(at::view_as_real(x)); }},
  };
  for (const View& view : views) check_same_view(view, at::zeros({3, 4}, at::kComplexFloat));
}

}  // namespace
