// SPDX-License-Identifier: BSD-3-Clause

// The default link, which chooses a link by device.
#include <remat/offload/copy_link.h>

#include "accelerator_link.h"
#include "memory_link.h"
#include "storage_memory.h"

namespace remat {
namespace {

class LinkOfDevice final : public CopyLink {
 public:
  at::Storage allocate_host(int64_t bytes, c10::Device device) override {
    return link(device).allocate_host(bytes, device);
  }
  int64_t stream(c10::Device device) override { return link(device).stream(device); }
  void share(const at::Storage& storage) override { link(storage.device()).share(storage); }
  CopyEventPtr computed_so_far(c10::Device device) override {
    return link(device).computed_so_far(device);
  }
  void hold_compute(const CopyEventPtr& event, c10::Device device) override {
    link(device).hold_compute(event, device);
  }
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override {
    return link(device.device()).copy_out(host, device, after);
  }
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override {
    return link(device.device()).copy_in(device, host, after);
  }

 private:
  CopyLink& link(c10::Device device) {
    if (device.is_cpu()) return memory_;
    return accelerator_;
  }

  detail::MemoryLink memory_{SimLinkOptions{}};
  detail::AcceleratorLink accelerator_;
};

}  // namespace

at::Storage CopyLink::allocate(int64_t bytes, c10::Device device) {
  return detail::allocate_storage(bytes, device);
}

std::shared_ptr<CopyLink> copy_link() {
  return std::make_shared<LinkOfDevice>();
}

}  // namespace remat
