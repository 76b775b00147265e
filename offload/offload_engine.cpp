// SPDX-License-Identifier: BSD-3-Clause

// The offload engine; its tickets, which rebuild tensors on moved storages; and the measurement of
// memory speeds.
#include <remat/offload/offload_engine.h>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "mover.h"
#include "pages.h"
#include "tickets.h"

#include <remat/engine/tensor_layout.h>
#include <remat/engine/torch_compat.h>

namespace remat {
namespace {

class MovedTicket final : public OffloadStore::Ticket {
 public:
  MovedTicket(std::shared_ptr<detail::Mover> mover, std::shared_ptr<detail::MovedStorage> moved,
              const at::Tensor& tensor)
      : mover_(std::move(mover)),
        moved_(std::move(moved)),
        layout_(tensor),
        version_(tensor.unsafeGetTensorImpl()->version_counter()),
        put_at_version_(version()) {}
  ~MovedTicket() override {
    try {
      mover_->drop(*moved_);
    } catch (const std::exception&) {
      // The device is in error. The next user of the device gets the error.
    }
  }

  at::Tensor get() override {
    TORCH_CHECK(version() == put_at_version_, "[offload] ", moved_->description,
                ": expected a tensor that is not written after it was saved, got one at version ",
                version(), " that was put at version ", put_at_version_,
                ". Write to a copy, or clone it before the call that saves it.");
    const auto [storage, copy_version] = mover_->give(*moved_);
    // Made without an op, so that no interception or mode sees it.
    at::Tensor tensor = lay_out(storage, layout_);
    // If the storage was copied back, use the copy's counter, so that a node that saves the result
    // notices later writes. Otherwise use the original's, as if the tensor had never been put.
    const c10::VariableVersion& version = copy_version ? *copy_version : version_;
    if (version_.enabled()) tensor.unsafeGetTensorImpl()->set_version_counter(version);
    return tensor;
  }

 private:
  uint32_t version() const { return version_.enabled() ? version_.current_version() : 0; }

  std::shared_ptr<detail::Mover> mover_;
  std::shared_ptr<detail::MovedStorage> moved_;
  TensorLayout layout_;
  c10::VariableVersion version_;
  uint32_t put_at_version_;
};

constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int64_t kSmallShare = 64;
constexpr int kTimes = 4;  // runs of each measurement; the first run allocates the memory

double us_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

void wait_for(const CopyEventPtr& event) {
  if (event) event->wait();
}

/// Microseconds of the fastest copy out and of the fastest copy in.
std::pair<double, double> fastest(OffloadMemory& memory, c10::Device device, int64_t bytes) {
  double out_us = std::numeric_limits<double>::max();
  double in_us = out_us;
  CopyLink& link = memory.link();
  const at::Storage storage = link.allocate(bytes, device);
  if (device.is_cpu()) std::memset(storage.mutable_data(), 0, storage.nbytes());
  const auto block = memory.take(bytes, device);
  TORCH_CHECK(block, "[offload] terms: expected ", memory.name(), " to have room for ", bytes,
              " bytes, got none. Give it more room, or measure before it is full.");
  for (int i = 0; i < kTimes; ++i) {
    wait_for(link.computed_so_far(device));
    auto begin = std::chrono::steady_clock::now();
    wait_for(block->write(storage, link.computed_so_far(device)));
    out_us = std::min(out_us, us_since(begin));
    begin = std::chrono::steady_clock::now();
    wait_for(block->read(storage, link.computed_so_far(device)));
    in_us = std::min(in_us, us_since(begin));
  }
  return {out_us, in_us};
}

double gbps(int64_t bytes, double us) {
  return static_cast<double>(bytes) / (std::max(us, 1e-3) * 1e3);
}

/// Copies blocks of two sizes out of the device and back, several times each, and uses the fastest
/// times. Throws if the memory has no room for a block, and passes the memory's errors on.
OffloadPlace measured_place(OffloadMemory& memory, c10::Device device) {
  // A memory takes whole pages.
  const int64_t large =
      std::min(kLargeBytes, memory.max_bytes() / detail::kPageBytes * detail::kPageBytes);
  TORCH_CHECK_VALUE(large > 0, "[offload] terms: expected a memory of a page (", detail::kPageBytes,
                    " bytes) or more, got ", memory.name(), " of ", memory.max_bytes(),
                    " bytes. Leave it out.");
  const int64_t small = std::max<int64_t>(1, large / kSmallShare);
  const auto [out_us, in_us] = fastest(memory, device, large);
  const auto [small_out_us, small_in_us] = fastest(memory, device, small);
  OffloadPlace place;
  place.name = memory.name();
  place.max_bytes = memory.max_bytes();
  place.block_bytes = memory.block_bytes();
  // If noise makes the large copy no slower than the small one, the latency is not subtracted, so
  // the rate is the bytes of the large copy divided by its time.
  const auto rate = [&](double us, double small_us) {
    return gbps(us > small_us ? large - small : large, us > small_us ? us - small_us : us);
  };
  place.out_gbps = rate(out_us, small_out_us);
  place.in_gbps = rate(in_us, small_in_us);
  const double small_kb = static_cast<double>(small) / 1e3;
  place.latency_us = std::max(
      {0.0, small_out_us - small_kb / place.out_gbps, small_in_us - small_kb / place.in_gbps});
  return place;
}

class Engine final : public OffloadEngine {
 public:
  explicit Engine(const OffloadOptions& options)
      : options_(options), mover_(std::make_shared<detail::Mover>(options)) {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    if (!may_move(tensor)) return std::make_shared<detail::KeptTicket>(tensor);
    return std::make_shared<MovedTicket>(mover_, mover_->take(tensor), tensor);
  }

  OffloadStats stats() const override { return mover_->stats(); }

  std::optional<OffloadTerms> limits() const override {
    std::vector<OffloadPlace> places;
    for (const auto& memory : options_.memories)
      places.push_back({.name = memory->name(),
                        .max_bytes = memory->max_bytes(),
                        .block_bytes = memory->block_bytes()});
    return OffloadTerms{.places = std::move(places),
                        .min_bytes = options_.min_bytes,
                        .max_bytes = options_.max_bytes,
                        .prefetch_bytes = options_.prefetch_bytes,
                        .max_leaving_bytes = options_.max_leaving_bytes};
  }

  OffloadTerms terms(std::optional<c10::Device> given) override {
    const c10::Device device = given ? with_index(*given) : usual_device();
    TORCH_CHECK_VALUE(!options_.device || options_.device->type() == device.type(),
                      "[offload] terms: expected ", *options_.device,
                      ", the device of this store, got ", device,
                      ": it moves nothing of a step there. Plan with a store for that device.");
    OffloadTerms terms = *limits();
    const std::lock_guard lock(measured_mutex_);
    std::vector<OffloadPlace>& places = measured_[device];
    if (places.empty()) {
      for (const auto& memory : options_.memories)
        places.push_back(measured_place(*memory, device));
    }
    terms.places = places;
    return terms;
  }

 private:
  /// Returns `device`; if it has no index, the accelerator's current device.
  static c10::Device with_index(c10::Device device) {
    if (device.has_index() || device.is_cpu()) return device;
    return c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }

  c10::Device usual_device() const {
    if (options_.device && (options_.device->has_index() || options_.device->is_cpu()))
      return *options_.device;
    const std::optional<c10::DeviceType> accelerator = at::getAccelerator(/*checked=*/false);
    if (!accelerator || *accelerator == c10::kPrivateUse1) return c10::kCPU;
    // Ask the hooks, because FakeTensorMode replaces the device guard by one that reports devices
    // even where there are none.
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*accelerator);
    if (hooks.deviceCount() == 0) return c10::kCPU;
    return {*accelerator, at::accelerator::getDeviceIndex()};
  }

  bool may_move(const at::Tensor& tensor) const {
    if (!detail::is_plain(tensor) || !tensor.storage().data()) return false;
    if (static_cast<int64_t>(tensor.storage().nbytes()) < options_.min_bytes) return false;
    const std::optional<c10::Device>& wanted = options_.device;
    if (!wanted) return true;
    const c10::Device device = tensor.device();
    return device.type() == wanted->type() &&
           (!wanted->has_index() || device.index() == wanted->index());
  }

  const OffloadOptions options_;
  std::shared_ptr<detail::Mover> mover_;
  std::mutex measured_mutex_;
  std::unordered_map<c10::Device, std::vector<OffloadPlace>> measured_;
};

void check_bytes(int64_t bytes, const char* option) {
  TORCH_CHECK_VALUE(bytes >= 0, "[offload_engine] ", option, ": expected 0 or more, got ", bytes,
                    ".");
}

}  // namespace

std::shared_ptr<OffloadEngine> offload_engine(OffloadOptions options) {
  check_bytes(options.min_bytes, "min_bytes");
  check_bytes(options.max_bytes, "max_bytes");
  check_bytes(options.prefetch_bytes, "prefetch_bytes");
  check_bytes(options.max_leaving_bytes, "max_leaving_bytes");
  for (const auto& memory : options.memories)
    TORCH_CHECK_VALUE(memory, "[offload_engine] memories: expected OffloadMemory, got null.");
  if (options.memories.empty()) options.memories.push_back(host_memory());
  return std::make_shared<Engine>(options);
}

}  // namespace remat
