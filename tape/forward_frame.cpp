// SPDX-License-Identifier: BSD-3-Clause

// The hooks that stand for dropped tensors in autograd's graph.
#include <remat/tape/forward_frame.h>

#include <utility>

namespace remat {
namespace {

/// Stands for one slot in autograd's graph. Hooks own their region; the region does not own them.
class SlotHook final : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHook(std::shared_ptr<Region> region) : region_(std::move(region)) {}
  SlotHook(const SlotHook&) = delete;
  SlotHook& operator=(const SlotHook&) = delete;
  ~SlotHook() override {
    if (slot_) region_->release(*slot_);
  }

  void call_pack_hook(const at::Tensor& tensor) override { slot_ = &region_->add_slot(tensor); }
  at::Tensor call_unpack_hook() override { return region_->load(*slot_); }

  std::optional<std::pair<c10::SafePyObject, c10::SafePyObject>> retrieve_unpack_hook_data()
      const override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region_->label(),
        ": expected a backward by autograd's engine, got one by compiled autograd, which takes no "
        "saved-tensor hooks of C++. Run backward outside of it.");
  }

 private:
  std::shared_ptr<Region> region_;
  Slot* slot_ = nullptr;
};

}  // namespace

ForwardFrame::ForwardFrame(std::shared_ptr<Region> region) : region_(std::move(region)) {}

std::unique_ptr<torch::autograd::SavedVariableHooks> ForwardFrame::make_hooks() {
  return std::make_unique<SlotHook>(region_);
}

}  // namespace remat
