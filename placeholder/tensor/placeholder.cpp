// SPDX-License-Identifier: BSD-3-Clause

// Making and recognising placeholders, and the errors when one is read.
#include <remat/placeholder/placeholder.h>

#include <ATen/EmptyTensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include <remat/placeholder/placeholder_impl.h>

#include "placeholder_message.h"

namespace remat {
namespace {

c10::Device dry_device() {
  return {c10::DeviceType::PrivateUse1, 0};
}

std::string maker(const PlaceholderInfo& info) {
  return info.op.empty() ? std::string() : c10::str(" (", info.op, ")");
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && tensor.layout() == c10::Layout::Strided &&
         !tensor.is_nested() && !tensor.is_quantized() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

}  // namespace

std::string placeholder_access_message(std::string_view reader, const PlaceholderInfo& info) {
  if (info.kind == PlaceholderKind::kDry) {
    return c10::str("[placeholder] dry tensor", maker(info),
                    ": expected an op that needs shapes only, got ", reader,
                    ", which needs its data. A tensor on remat_meta has none that could reach the "
                    "host: run this part on a real device.");
  }
  return c10::str("[placeholder] result of call '", info.call, "'", maker(info), " of ",
                  info.region, ": expected a use of its shape only, got ", reader,
                  ", which needs its data. A placeholder stands for a value that was not kept: its "
                  "call is skipped during recompute. Keep or compute the value, by "
                  "recompute_needs_tensor() right before the reader for instance, or do not read "
                  "it.");
}

at::Tensor make_placeholder(const at::Tensor& like, PlaceholderInfo info) {
  TORCH_CHECK_NOT_IMPLEMENTED(is_plain(like), "[placeholder] result of call '", info.call, "'",
                              ": expected a strided tensor, got ", describe_tensor(like),
                              ". Keep its value instead.");
  const c10::Device device = info.kind == PlaceholderKind::kDry ? dry_device() : like.device();
  auto storage =
      c10::make_intrusive<PlaceholderStorage>(like.storage().nbytes(), device, std::move(info));
  return make_placeholder_on(c10::Storage(std::move(storage)), like);
}

c10::Storage make_dry_storage(size_t size_bytes, std::string_view op) {
  return c10::Storage(c10::make_intrusive<PlaceholderStorage>(
      size_bytes, dry_device(),
      PlaceholderInfo{
          .kind = PlaceholderKind::kDry, .region = {}, .call = {}, .op = std::string(op)}));
}

at::Tensor make_dry(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype,
                    std::string_view op) {
  const caffe2::TypeMeta type = c10::scalarTypeToTypeMeta(dtype);
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, type.itemsize());
  auto impl = c10::make_intrusive<PlaceholderImpl>(make_dry_storage(bytes, op), type);
  impl->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(impl));
}

bool is_placeholder(const at::Tensor& tensor) {
  return PlaceholderStorage::of(tensor) != nullptr;
}

const PlaceholderInfo& placeholder_info(const at::Tensor& tensor) {
  const PlaceholderStorage* const storage = PlaceholderStorage::of(tensor);
  TORCH_CHECK_VALUE(storage, "[placeholder] tensor: expected a placeholder, got ",
                    describe_tensor(tensor), ". Ask is_placeholder() first.");
  return storage->info();
}

std::string describe_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  const std::string dtype(c10::getDtypeNames(tensor.scalar_type()).first);
  if (tensor.is_nested() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides())
    return c10::str(dtype, " [sizes unknown] on ", tensor.device());
  return c10::str(dtype, " ", tensor.sizes(), " on ", tensor.device());
}

void throw_placeholder_access(std::string_view op_name, const PlaceholderInfo& info) {
  TORCH_CHECK(false, placeholder_access_message(op_name, info));
}

}  // namespace remat
