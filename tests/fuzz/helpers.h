// SPDX-License-Identifier: BSD-3-Clause

// Functions that random programs call besides LibTorch and remat, each with its own source text,
// which printed programs contain.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <remat/remat.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <any>
#include <array>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#define REMAT_FUZZ_HELPER(name, ...) \
  __VA_ARGS__                        \
  inline constexpr const char* name##_text = #__VA_ARGS__;

namespace remat::fuzz {

// clang-format off
REMAT_FUZZ_HELPER(Square,
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    return {grads[0] * 2 * context->get_saved_variables()[0]};
  }
};)

REMAT_FUZZ_HELPER(SavesResult,
struct SavesResult : torch::autograd::Function<SavesResult> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor result = x.sigmoid();
    context->save_for_backward({result});
    return result;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor result = context->get_saved_variables()[0];
    return {grads[0] * result * (1 - result)};
  }
};)

REMAT_FUZZ_HELPER(TwoResults,
struct TwoResults : torch::autograd::Function<TwoResults> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& y, double factor) {
    const at::Tensor middle = x.tanh();
    context->saved_data["factor"] = factor;
    context->save_for_backward({middle});
    return {middle * factor, y + middle};
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor middle = context->get_saved_variables()[0];
    const double factor = context->saved_data["factor"].toDouble();
    return {(grads[0] * factor + grads[1]) * (1 - middle * middle), grads[1], at::Tensor()};
  }
};)

REMAT_FUZZ_HELPER(InPlace,
struct InPlace : torch::autograd::Function<InPlace> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    context->mark_dirty({x});
    return x.mul_(0.5);
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, const std::vector<at::Tensor>& grads) {
    return {grads[0] * 0.5};
  }
};)

REMAT_FUZZ_HELPER(WritesSaved,
struct WritesSaved : torch::autograd::Function<WritesSaved> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const at::Tensor kept = x.tanh();
    context->saved_data["kept"] = kept;
    context->save_for_backward({kept});
    return x * kept;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor before = saved * 2;
    saved.mul_(0.5);
    return {grads[0] * (before + context->saved_data["kept"].toTensor())};
  }
};)

REMAT_FUZZ_HELPER(WritesShared,
struct WritesShared : torch::autograd::Function<WritesShared> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    return Square::forward(context, x);
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context, const std::vector<at::Tensor>& grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    saved.detach().mul_(2);
    return {grads[0] * saved};
  }
};)

REMAT_FUZZ_HELPER(writes_shared,
inline at::Tensor writes_shared(const at::Tensor& a) {
  const at::Tensor middle = a.sin();
  const at::Tensor square = WritesShared::apply(middle.view({-1}));
  return square.view({4, 4}) * middle.cos();
})

REMAT_FUZZ_HELPER(add_out,
inline at::Tensor add_out(const at::Tensor& a, const at::Tensor& b) {
  const at::NoGradGuard no_grad;
  at::Tensor out = at::zeros({4, 4}, a.device());
  return at::add_out(out, a, b);
})

REMAT_FUZZ_HELPER(no_grad_mean,
inline at::Tensor no_grad_mean(const at::Tensor& a) {
  const at::NoGradGuard no_grad;
  return a.mean();
})

REMAT_FUZZ_HELPER(inner_grad,
inline at::Tensor inner_grad(const at::Tensor& a) {
  const at::Tensor x = a.requires_grad() ? a : a.detach().requires_grad_(true);
  const at::Tensor y = (x.sin() * x).sum();
  return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
})

REMAT_FUZZ_HELPER(inner_backward,
inline at::Tensor inner_backward(const at::Tensor& a, const at::Tensor& weight) {
  const at::Tensor x = a.detach().requires_grad_(true);
  (x * weight).sin().sum().backward();
  return a + x.grad();
})

REMAT_FUZZ_HELPER(set_hook,
inline void set_hook(const at::Tensor& a, double factor) {
  if (a.requires_grad()) a.register_hook([factor](const at::Tensor& grad) { return grad * factor; });
})

REMAT_FUZZ_HELPER(library_op,
inline void scale(const at::Tensor& x, double factor) {
  const at::NoGradGuard no_grad;
  x.detach().mul_(factor);
}
inline void scale_all(at::TensorList xs, double factor) {
  for (const at::Tensor& x : xs) scale(x, factor);
}
inline void scale_unseen(const at::Tensor& x, double factor) {
  at::Tensor values = at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().requires_grad(false));
  values.mul_(factor);
}
inline void scale_marked(const at::Tensor& x, at::TensorList xs, double factor) {
  scale(x, factor);
  scale_all(xs, factor);
}
inline at::Tensor fill(const at::Tensor& x, const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  x.detach().copy_(y.detach() * 0.5);
  return x.detach() + y.detach();
}
inline at::Tensor mix(at::TensorList xs) {
  const at::NoGradGuard no_grad;
  return at::stack(xs).tanh().sum(0);
}
/// Returns an op of a library in which only scale_marked's schema marks what its op writes.
inline c10::OperatorHandle library_op(const char* name) {
  static const torch::Library& library = *[] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "fuzz", {}, __FILE__, __LINE__);
    made->def("scale(Tensor x, float factor) -> ()");
    made->def("scale_all(Tensor[] xs, float factor) -> ()");
    made->def("scale_unseen(Tensor x, float factor) -> ()");
    made->def("scale_marked(Tensor(a!) x, Tensor(b!)[] xs, float factor) -> ()");
    made->def("fill(Tensor x, Tensor y) -> Tensor");
    made->def("mix(Tensor[] xs) -> Tensor");
    const auto key = c10::DispatchKey::CompositeExplicitAutograd;
    made->impl("scale", torch::dispatch(key, scale));
    made->impl("scale_all", torch::dispatch(key, scale_all));
    made->impl("scale_unseen", torch::dispatch(key, scale_unseen));
    made->impl("scale_marked", torch::dispatch(key, scale_marked));
    made->impl("fill", torch::dispatch(key, fill));
    made->impl("mix", torch::dispatch(key, mix));
    return made;
  }();
  static_cast<void>(library);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
})

REMAT_FUZZ_HELPER(library_scale,
inline void library_scale(const at::Tensor& x, double factor) {
  library_op("fuzz::scale").typed<void(const at::Tensor&, double)>().call(x, factor);
})

REMAT_FUZZ_HELPER(library_scale_all,
inline void library_scale_all(const std::vector<at::Tensor>& xs, double factor) {
  library_op("fuzz::scale_all").typed<void(at::TensorList, double)>().call(xs, factor);
})

REMAT_FUZZ_HELPER(library_scale_unseen,
inline void library_scale_unseen(const at::Tensor& x, double factor) {
  library_op("fuzz::scale_unseen").typed<void(const at::Tensor&, double)>().call(x, factor);
})

REMAT_FUZZ_HELPER(library_scale_marked,
inline void library_scale_marked(const at::Tensor& x, const std::vector<at::Tensor>& xs, double factor) {
  library_op("fuzz::scale_marked").typed<void(const at::Tensor&, at::TensorList, double)>().call(x, xs, factor);
})

REMAT_FUZZ_HELPER(library_fill,
inline at::Tensor library_fill(const at::Tensor& x, const at::Tensor& y) {
  return library_op("fuzz::fill").typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, y);
})

REMAT_FUZZ_HELPER(library_mix,
inline at::Tensor library_mix(const at::Tensor& a, const at::Tensor& b) {
  const std::vector<at::Tensor> both = {a.detach(), b.detach()};
  return library_op("fuzz::mix").typed<at::Tensor(at::TensorList)>().call(both);
})

REMAT_FUZZ_HELPER(second_device,
inline at::Device second_device() {
  const bool has_two = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() > 1;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(has_two ? 1 : 0)};
})

REMAT_FUZZ_HELPER(wait_for,
inline void wait_for(const c10::Stream& first, const c10::Stream& then) {
  c10::Event event(at::kCUDA);
  event.record(first);
  event.block(then);
})

REMAT_FUZZ_HELPER(from_pinned,
inline at::Tensor from_pinned(const at::Tensor& a, at::Device device) {
  const at::NoGradGuard no_grad;
  if (a.is_cpu()) return a.detach().pin_memory().to(device, a.scalar_type(), /*non_blocking=*/true);
  if (device.is_cpu()) return a.detach().cpu();
  at::Tensor host = at::empty(a.sizes(), a.options().device(at::kCPU).pinned_memory(true).requires_grad(false));
  host.copy_(a.detach(), /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  if (a.device() != device) wait_for(guard.getStream(a.device()), guard.getStream(device));
  return host.to(device, a.scalar_type(), /*non_blocking=*/true);
})

REMAT_FUZZ_HELPER(used_here,
inline void used_here(const at::Tensor& a) {
  if (a.is_cuda()) a.record_stream(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(a.device()));
})

REMAT_FUZZ_HELPER(other_stream,
inline c10::Stream other_stream(at::Device device) {
  static const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  static const std::array<c10::Stream, 2> streams = {guard.getStreamFromGlobalPool({at::kCUDA, 0}), guard.getStreamFromGlobalPool(second_device())};
  return streams[static_cast<size_t>(device.index())];
})

REMAT_FUZZ_HELPER(SideStream,
/// Makes another stream of a device current while this object lives. That stream waits for the
/// previous one, which waits for it at the end, or later, when a function's caller says so.
class SideStream {
 public:
  SideStream(at::Device device, const std::vector<at::Tensor>& used, bool is_late = false)
      : guard_(at::kCUDA), before_(guard_.getStream(device)), side_(other_stream(device)), is_late_(is_late) {
    wait_for(before_, side_);
    for (const at::Tensor& tensor : used) {
      if (tensor.defined() && tensor.device() == device) tensor.record_stream(side_);
    }
    guard_.exchangeStream(side_);
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() {
    guard_.exchangeStream(before_);
    is_late_ ? late().push_back(side_) : wait_for(side_, before_);
  }
  /// Makes the current stream wait for all side streams that nobody has waited for yet.
  static void wait_late() {
    const c10::impl::VirtualGuardImpl guard(at::kCUDA);
    for (const c10::Stream& side : late()) wait_for(side, guard.getStream(side.device()));
    late().clear();
  }
 private:
  static std::vector<c10::Stream>& late() {
    static thread_local std::vector<c10::Stream> all;
    return all;
  }
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream before_;
  c10::Stream side_;
  bool is_late_;
};)

REMAT_FUZZ_HELPER(on_this_stream,
/// Makes tensors of other streams usable on the current stream.
inline std::vector<at::Tensor> on_this_stream(std::vector<at::Tensor> results) {
  SideStream::wait_late();
  for (const at::Tensor& result : results) used_here(result);
  return results;
})

REMAT_FUZZ_HELPER(bytes_of,
inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::empty({0}, at::TensorOptions(at::kByte).device(tensor.device())).set_(tensor.storage());
})

REMAT_FUZZ_HELPER(resize_storage,
inline void resize_storage(const at::Tensor& tensor, size_t bytes) {
  const c10::Storage& storage = tensor.storage();
  if (tensor.is_cpu()) return at::native::resize_bytes_nocuda(storage, bytes);
  const c10::DeviceGuard guard(tensor.device());
  storage.set_data_ptr(bytes > 0 ? storage.allocator()->allocate(bytes) : at::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(bytes);
})

REMAT_FUZZ_HELPER(free_storages,
inline void free_storages(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) resize_storage(tensor, 0);
})

REMAT_FUZZ_HELPER(free_for_a_while,
inline void free_for_a_while(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(bytes_of(tensor).clone());
  free_storages(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    resize_storage(tensors[i], copies[i].nbytes());
    bytes_of(tensors[i]).copy_(copies[i]);
  }
})

REMAT_FUZZ_HELPER(Autocast,
class Autocast {
 public:
  explicit Autocast(at::DeviceType type = at::kCPU) : type_(type), was_on_(at::autocast::is_autocast_enabled(type)), dtype_(at::autocast::get_autocast_dtype(type)) {
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, was_on_);
    at::autocast::set_autocast_dtype(type_, dtype_);
  }
 private:
  at::DeviceType type_;
  bool was_on_;
  at::ScalarType dtype_;
};)

REMAT_FUZZ_HELPER(copying_hooks,
inline remat::SavedTensorsHooks copying_hooks() {
  return {.pack = [](const at::Tensor& tensor) -> std::any { return tensor.clone(); },
          .unpack = [](const std::any& copy) { return std::any_cast<at::Tensor>(copy).clone(); }};
})

REMAT_FUZZ_HELPER(on_thread,
inline void on_thread(const std::function<void()>& fn) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      fn();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
})

REMAT_FUZZ_HELPER(on_two_threads,
inline void on_two_threads(const std::function<void()>& first, const std::function<void()>& second) {
  std::exception_ptr error;
  std::thread other([&] {
    try {
      second();
    } catch (...) {
      error = std::current_exception();
    }
  });
  try {
    first();
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (error) std::rethrow_exception(error);
})
// clang-format on

}  // namespace remat::fuzz
