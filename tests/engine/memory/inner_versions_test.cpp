// SPDX-License-Identifier: BSD-3-Clause

// A write to an inner tensor of a tensor subclass is noticed, and so is a replaced inner tensor.
#include <remat/engine/inner_versions.h>

#include "support/catch.h"

#include <remat/engine/held_storage.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/error_text.h"
#include "support/same_bits.h"

namespace remat {
namespace {

std::map<const c10::TensorImpl*, std::vector<at::Tensor>>& inner_of_wrappers() {
  static std::map<const c10::TensorImpl*, std::vector<at::Tensor>> all;
  return all;
}

std::vector<at::Tensor> find_inner_tensors(const at::Tensor& wrapper) {
  return inner_of_wrappers()[wrapper.unsafeGetTensorImpl()];
}

/// A tensor of a wrapper class that has these inner tensors while this object lives.
class Wrapper {
 public:
  explicit Wrapper(std::vector<at::Tensor> inner)
      : tensor_(at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<float>(),
                                                         at::kCPU)) {
    tensor_.unsafeGetTensorImpl()->set_python_dispatch(true);
    hold(std::move(inner));
    set_inner_tensors(&find_inner_tensors);
  }
  Wrapper(const Wrapper&) = delete;
  Wrapper& operator=(const Wrapper&) = delete;
  ~Wrapper() {
    inner_of_wrappers().clear();
    set_inner_tensors(nullptr);
  }

  void hold(std::vector<at::Tensor> inner) {
    inner_of_wrappers()[tensor_.unsafeGetTensorImpl()] = std::move(inner);
  }
  const at::Tensor& get() const { return tensor_; }
  InnerVersions versions() const { return InnerVersions(tensor_); }

 private:
  at::Tensor tensor_;
};

std::string complaint(const InnerVersions& versions, const Wrapper& wrapper, bool may_be_copy) {
  return error_text(
      [&] { versions.check_unchanged(wrapper.get(), may_be_copy, [] { return "here"; }); });
}

}  // namespace

TEST_CASE("A plain tensor has no inner tensors", "[engine][memory]") {
  const at::Tensor plain = torch::ones({2});
  const InnerVersions versions(plain);
  plain.add_(1);
  CHECK(versions.memories().empty());
  CHECK_FALSE(versions.changed());
  CHECK_FALSE(versions.have({}));
}

TEST_CASE("An inner tensor that is written has changed", "[engine][memory]") {
  const at::Tensor a = torch::ones({2});
  const at::Tensor b = torch::ones({3});
  const Wrapper wrapper({a, b});
  const InnerVersions versions = wrapper.versions();
  CHECK(complaint(versions, wrapper, false) == "no error");
  b[1].fill_(5);
  CHECK(versions.changed());
  CHECK_THAT(complaint(versions, wrapper, true),
             ContainsSubstring("has been modified by an inplace operation") &&
                 ContainsSubstring("here: expected the tensors in one of a Python class"));
}

TEST_CASE("A write without a version to an inner tensor is found by its bytes",
          "[engine][memory]") {
  const at::Tensor inner = torch::ones({2});
  const Wrapper wrapper({inner});
  const InnerVersions versions = wrapper.versions();
  inner.data_ptr<float>()[0] = 2;
  CHECK_FALSE(versions.changed());
  CHECK_THAT(complaint(versions, wrapper, false), ContainsSubstring("here: expected the tensors"));
}

TEST_CASE("An inner tensor in place of another is found unless it may be a copy",
          "[engine][memory]") {
  const at::Tensor inner = torch::ones({2});
  Wrapper wrapper({inner});
  const InnerVersions versions = wrapper.versions();
  wrapper.hold({inner.clone()});
  CHECK_THAT(complaint(versions, wrapper, false),
             ContainsSubstring("here: expected the tensor of a Python class of its own to hold"));
  CHECK(complaint(versions, wrapper, true) == "no error");
  wrapper.hold({inner, torch::ones({2})});
  CHECK_THAT(complaint(versions, wrapper, false), ContainsSubstring("got another one"));
}

TEST_CASE("An inner tensor whose memory was freed is found", "[engine][memory]") {
  const at::Tensor inner = torch::ones({2});
  const Wrapper wrapper({inner});
  const InnerVersions versions = wrapper.versions();
  inner.storage().unsafeGetStorageImpl()->set_nbytes(0);
  CHECK_THAT(complaint(versions, wrapper, true),
             ContainsSubstring("here (a tensor in one of a Python class of its own"));
}

TEST_CASE("Wrappers of the same memory in the same order count as one", "[engine][memory]") {
  const at::Tensor a = torch::ones({2});
  const at::Tensor b = torch::ones({2});
  const Wrapper wrapper({a, b});
  const InnerVersions versions = wrapper.versions();
  CHECK(versions.memories() == InnerVersions::memories({a, b}));
  CHECK(versions.have(InnerVersions::memories({a.view({2, 1}), b})));
  CHECK_FALSE(versions.have(InnerVersions::memories({b, a})));
  CHECK_FALSE(versions.have(InnerVersions::memories({a})));
}

TEST_CASE("Inner tensors of inner tensors are watched, inference tensors are not",
          "[engine][memory]") {
  const auto made_in_inference = [] {
    const c10::InferenceMode inference;
    return at::ones({2});
  };
  const at::Tensor deep = torch::ones({2});
  const Wrapper inside({deep});
  const Wrapper outside({inside.get(), made_in_inference()});
  const InnerVersions versions = outside.versions();
  CHECK(versions.memories() == InnerVersions::memories({deep}));
  deep.add_(1);
  CHECK(versions.changed());
}

}  // namespace remat
