// SPDX-License-Identifier: BSD-3-Clause

// The device remat_meta: models, backward and optimizers on it, and what it refuses.
#include <remat/backend/register_device.h>

#include "support/dry.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include <atomic>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/same_bits.h"

namespace {

using at::Tensor;

Tensor cpu_step() {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                              torch::nn::Linear(16, 4));
  torch::optim::AdamW optimizer(model->parameters());
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    model->forward(torch::randn({5, 8})).square().mean().backward();
    optimizer.step();
  }
  std::vector<Tensor> all;
  for (const Tensor& parameter : model->parameters()) all.push_back(parameter.detach().flatten());
  return torch::cat(all);
}

// A step before the device is registered: for comparison, and so that autograd's engine has already
// counted its devices when the first dry backward runs.
const Tensor kStepBefore = cpu_step();

TEST_CASE("A CPU training step is bitwise as before the device was registered", "[device]") {
  dry_device();
  CHECK(same_bits(cpu_step(), kStepBefore));
}

TEST_CASE("The device has a name and registering twice is fine", "[device]") {
  dry_device();
  remat::register_device();
  CHECK(c10::get_privateuse1_backend() == "remat_meta");
  CHECK(at::Device("remat_meta:0").type() == at::kPrivateUse1);
  CHECK(at::getAccelerator() == at::kPrivateUse1);  // see Note [The accelerator]
}

TEST_CASE("Factories make dry tensors with the right metadata", "[device]") {
  const auto options = dry_options();
  CHECK(is_dry(torch::empty({2, 3}, options)));
  CHECK(torch::empty({2, 3}, options).sizes() == at::IntArrayRef({2, 3}));
  CHECK(torch::zeros({2}, options.dtype(at::kHalf)).scalar_type() == at::kHalf);
  CHECK(is_dry(torch::full({2}, 1.5, options)));
  CHECK(is_dry(torch::arange(5, options)));
  CHECK(torch::arange(5, options).numel() == 5);
  CHECK(is_dry(torch::randn({3}, options)));
  CHECK(is_dry(torch::randperm(6, options)));
  CHECK(is_dry(torch::eye(3, options)));
  CHECK(is_dry(torch::linspace(0, 1, 7, options)));
  CHECK(is_dry(torch::empty_strided({2, 3}, {1, 2}, options)));
  CHECK(is_dry(torch::zeros({2}).to(dry_device())));
  const Tensor last =
      torch::empty({2, 3, 4, 5}, options.memory_format(at::MemoryFormat::ChannelsLast));
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(is_dry(torch::ones_like(last)));
  CHECK(is_dry(torch::zeros({2}).new_zeros({4}, options)));
  CHECK(torch::empty_like(last, at::kCPU).is_cpu());
  CHECK_THROWS_WITH(torch::empty({1}, at::Device("remat_meta:1")),
                    ContainsSubstring("expected remat_meta:0, got remat_meta:1"));
}

TEST_CASE("Views of dry tensors share their storage, results have their own", "[device]") {
  const Tensor x = torch::empty({4, 6}, dry_options());
  const auto storage = [](const Tensor& t) { return t.storage().unsafeGetStorageImpl(); };
  CHECK(storage(x.view({24})) == storage(x));
  CHECK(storage(x.t()[2]) == storage(x));
  CHECK(x.t()[2].storage_offset() == 2);
  CHECK(storage(x.view(at::kInt)) == storage(x));
  CHECK(is_dry(x.view(at::kInt)));
  CHECK(storage(x.detach()) == storage(x));
  CHECK(storage(x + 1) != storage(x));
  CHECK(storage(x.clone()) != storage(x));
  CHECK(x.equal(x.detach()));  // known without data
  const Tensor same = x;
  CHECK(same.add_(1).is_same(x));
  Tensor out = torch::empty({0}, dry_options());
  torch::add_out(out, x, x);
  CHECK(out.sizes() == x.sizes());
  CHECK(out.storage().nbytes() == 4 * 24);
  Tensor resized = torch::empty({2}, dry_options());
  resized.resize_({5, 5});
  CHECK(resized.sizes() == at::IntArrayRef({5, 5}));
  resized.set_(x.storage(), 0, {3}, {1});
  CHECK(storage(resized) == storage(x));
  const auto version = x._version();
  x.mul_(2);
  CHECK(x._version() == version + 1);
}

TEST_CASE("Dry and real tensors do not mix", "[device]") {
  const Tensor dry = torch::ones({2, 3}, dry_options());
  const Tensor real = torch::ones({2, 3});
  const std::string text = error_text([&] { (void)dry.add(real); });
  CHECK_THAT(text, ContainsSubstring("[placeholder] aten::add.Tensor: expected all tensors on "
                                     "remat_meta"));
  CHECK_THAT(text,
             ContainsSubstring("got float32 [2, 3] on remat_meta:0 and float32 [2, 3] on cpu"));
  CHECK_THAT(error_text([&] { (void)real.mm(dry.t()); }), ContainsSubstring("aten::mm"));
  CHECK_THAT(error_text([&] { (void)torch::cat({dry, real}); }), ContainsSubstring("aten::cat"));
  CHECK_THAT(error_text([&] { (void)dry.index({torch::zeros({2}, at::kLong)}); }),
             ContainsSubstring("aten::index.Tensor"));
  CHECK_THAT(error_text([&] { Tensor(real[0][0]).add_(dry[0][0]); }),
             ContainsSubstring("aten::add_.Tensor"));
}

TEST_CASE("Data of dry tensors does not reach the host", "[device]") {
  const Tensor x = torch::ones({2, 3}, dry_options());
  const std::vector<std::pair<const char*, std::function<void()>>> reads = {
      {"aten::_local_scalar_dense", [&] { (void)x.sum().item(); }},
      {"aten::_local_scalar_dense", [&] { (void)x[0][0].is_nonzero(); }},
      {"aten::equal", [&] { (void)x.equal(x + 1); }},
      {"aten::allclose", [&] { (void)x.allclose(x); }},
      {"aten::nonzero", [&] { (void)x.nonzero(); }},
      {"aten::_unique2", [&] { (void)torch::_unique2(x); }},
      {"aten::masked_select", [&] { (void)x.masked_select(x > 0); }},
      {"aten::index.Tensor", [&] { (void)x.index({x > 0}); }},
      {"aten::bincount", [&] { (void)torch::bincount(x.flatten().to(at::kLong)); }},
      {"aten::copy_", [&] { (void)x.to(at::kCPU); }},
      {"aten::copy_", [&] { (void)x.cpu(); }},
      {"aten::copy_",
       [&] {
         torch::zeros({2, 3}).copy_(x);
       }},
      {"aten::copy_", [&] { std::ostringstream() << x; }},
      {"a read of its memory", [&] { (void)x.data_ptr(); }},
      {"a read of its memory", [&] { (void)x.storage().data(); }},
  };
  for (const auto& [who, read] : reads) {
    const std::string text = error_text(read);
    CHECK_THAT(text, ContainsSubstring("[placeholder] dry tensor"));
    CHECK_THAT(text, ContainsSubstring(std::string("got ") + who));
  }
}

TEST_CASE("Copies into a dry tensor drop the data", "[device]") {
  const Tensor x = torch::zeros({2, 3}, dry_options());
  CHECK(x.copy_(torch::ones({3})).is_same(x));
  CHECK_THAT(error_text([&] { x.copy_(torch::ones({4})); }),
             ContainsSubstring("expected a source that can be expanded to the target"));
  CHECK(is_dry(torch::ones({2}).to(dry_device(), at::kHalf)));
  CHECK(x.to(at::kDouble).scalar_type() == at::kDouble);
}

TEST_CASE("A module does not come back", "[device]") {
  torch::nn::Linear net(2, 3);
  net->to(dry_device());
  CHECK_THAT(error_text([&] { net->to(at::kCPU); }),
             ContainsSubstring("[placeholder] dry tensor") && ContainsSubstring("got aten::copy_"));
  std::ostringstream out;
  CHECK_THAT(error_text([&] { torch::save(net, out); }),
             ContainsSubstring("[placeholder] dry tensor"));
}

TEST_CASE("A storage that was made on the device is dry", "[device]") {
  const at::Device device = dry_device();
  c10::Allocator* const allocator = c10::GetAllocator(at::kPrivateUse1);
  const c10::Storage storage(c10::make_storage_impl(
      c10::StorageImpl::use_byte_size_t(), 64, allocator->allocate(64), allocator, true, device));
  const Tensor x = torch::empty({0}, dry_options()).set_(storage, 0, {4, 4}, {4, 1});
  CHECK(is_dry(x));
  CHECK(x.storage().nbytes() == 64);
  CHECK(is_dry(x + 1));
  CHECK_THAT(error_text([&] { (void)storage.data(); }), ContainsSubstring("a read of its memory"));
}

TEST_CASE("CPU tensors are asked about pinned memory as before", "[device]") {
  dry_device();
  CHECK_FALSE(torch::ones({2}).is_pinned());
  if (torch::hasCUDA()) return;
  CHECK_THAT(error_text([] { (void)torch::ones({2}).pin_memory(); }),
             ContainsSubstring("[register_device] pinned memory: expected a GPU, got none"));
}

TEST_CASE("Autocast has the lists of other devices", "[device]") {
  const Tensor x = torch::ones({4, 4}, dry_options());
  at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
  at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
  const Tensor lower = x.mm(x);
  const Tensor same = x.relu();
  const Tensor full = lower.exp();
  const Tensor widest = torch::atan2(lower, x);
  const Tensor norm = lower.norm();
  at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
  at::autocast::clear_cache();
  CHECK(lower.scalar_type() == at::kBFloat16);
  CHECK(same.scalar_type() == at::kFloat);
  CHECK(full.scalar_type() == at::kFloat);
  CHECK(widest.scalar_type() == at::kFloat);
  CHECK(norm.scalar_type() == at::kFloat);
  CHECK(x.mm(x).scalar_type() == at::kFloat);
}

TEST_CASE("Threads run dry on their own", "[device]") {
  dry_device();
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&right] {
      const Tensor x = torch::randn({3, 4}, dry_options()).requires_grad_();
      for (int step = 0; step < 20; ++step) x.mm(x.t()).relu().sum().backward();
      if (is_dry(x.grad()) && x.grad().sizes() == x.sizes()) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4);
}

TEST_CASE("Ops that nobody wrote shapes for are named", "[device]") {
  CHECK_THAT(
      error_text([] { (void)torch::histc(torch::ones({4}, dry_options())); }),
      ContainsSubstring("[placeholder] aten::histc: expected an op with a Meta kernel, got one "
                        "without, on float32 [4] on remat_meta:0"));
}

TEST_CASE("Generators of the device can be seeded and saved", "[device]") {
  auto generator = at::globalContext().defaultGenerator(dry_device());
  generator.set_current_seed(7);
  const Tensor state = generator.get_state();
  generator.set_current_seed(8);
  generator.set_state(state);
  CHECK(generator.current_seed() == 7);
  CHECK(is_dry(torch::empty({2}, dry_options()).normal_(0, 1, generator)));
}

}  // namespace
