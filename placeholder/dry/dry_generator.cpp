// SPDX-License-Identifier: BSD-3-Clause

// A generator that keeps a seed and draws no numbers.
#include "dry_generator.h"

#include <ATen/Utils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>

namespace remat {
namespace {

class DryGenerator final : public c10::GeneratorImpl {
 public:
  explicit DryGenerator(uint64_t seed = c10::default_rng_seed_val)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, 0},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        seed_(seed) {}

  void set_current_seed(uint64_t seed) override { seed_ = seed; }
  uint64_t current_seed() const override { return seed_; }
  void set_offset(uint64_t /*offset*/) override {}
  uint64_t get_offset() const override { return 0; }

  uint64_t seed() override {
    seed_ = c10::detail::getNonDeterministicRandom();
    return seed_;
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state =
        at::empty({sizeof(seed_)}, at::TensorOptions(at::kCPU).dtype(at::kByte));
    std::memcpy(state.mutable_data_ptr(), &seed_, sizeof(seed_));
    return state.getIntrusivePtr();
  }

  void set_state(const c10::TensorImpl& state) override {
    at::detail::check_rng_state(state);
    TORCH_CHECK_VALUE(state.numel() == sizeof(seed_),
                      "[register_device] generator state: expected ", sizeof(seed_), " bytes, got ",
                      state.numel(),
                      ". Use a state that get_state() of a remat_meta generator returned.");
    std::memcpy(&seed_, state.data(), sizeof(seed_));
  }

 private:
  DryGenerator* clone_impl() const override { return new DryGenerator(seed_); }

  uint64_t seed_;
};

}  // namespace

at::Generator make_dry_generator() {
  return at::make_generator<DryGenerator>();
}

}  // namespace remat
