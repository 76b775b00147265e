// SPDX-License-Identifier: BSD-3-Clause

// Two stores that pack: one packs masks into bits, one scales numbers by a power of two and rounds
// them to a type with fewer bits.
#include <remat/offload/mask_store.h>
#include <remat/offload/rounding_store.h>

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tickets.h"

namespace remat {
namespace {

constexpr int64_t kBits = 8;

/// Packs bools into bits: bit i of byte k is element 8 k + i, in memory order.
at::Tensor pack(const at::Tensor& mask) {
  const at::Tensor values = at::as_strided(mask, {mask.numel()}, {1}).view(at::kByte);
  const at::Tensor bits = at::zeros({(values.numel() + kBits - 1) / kBits}, values.options());
  for (const auto i : c10::irange(std::min(kBits, values.numel()))) {
    // A bool may be memory of another type, in which any bits of the byte are set.
    const at::Tensor each = values.slice(0, i, std::nullopt, kBits).ne(0).view(at::kByte);
    bits.narrow(0, 0, each.numel()).bitwise_or_(at::bitwise_left_shift(each, i));
  }
  return bits;
}

at::Tensor unpack(const at::Tensor& bits, int64_t count) {
  const at::Tensor values = at::empty({count}, bits.options());
  for (const auto i : c10::irange(std::min(kBits, count))) {
    const at::Tensor each = values.slice(0, i, std::nullopt, kBits);
    each.copy_(at::bitwise_and(at::bitwise_right_shift(bits.narrow(0, 0, each.numel()), i), 1));
  }
  return values.view(at::kBool);
}

class Masks final : public MaskStore {
 public:
  explicit Masks(std::shared_ptr<OffloadStore> store)
      : tickets_(std::move(store), "[mask_store]") {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    if (tensor.scalar_type() != at::kBool || !detail::fills_memory(tensor))
      return tickets_.put(tensor);
    return tickets_.put(tensor, [&] {
      at::Tensor bits = pack(tensor);
      const std::lock_guard lock(mutex_);
      ++stats_.count;
      stats_.mask_bytes += static_cast<int64_t>(tensor.nbytes());
      stats_.packed_bytes += static_cast<int64_t>(bits.nbytes());
      detail::PackedTickets::Unpack unpacks = [count = tensor.numel()](const at::Tensor& packed) {
        return unpack(packed, count);
      };
      return std::pair(std::move(bits), std::move(unpacks));
    });
  }

  std::optional<OffloadTerms> limits() const override { return tickets_.limits(); }
  bool is_exact() const override { return !tickets_.store() || tickets_.store()->is_exact(); }

  MaskStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  detail::PackedTickets tickets_;
  mutable std::mutex mutex_;  // a thread that holds it never waits
  MaskStats stats_;
};

/// Number of elements processed at once. It is small so that temporaries take little memory.
constexpr int64_t kPieceSize = int64_t{1} << 20;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct SmallType {
  at::ScalarType dtype;
  double largest;   ///< Largest value that stands for a finite number
  double infinity;  ///< Value that stands for infinity
};

std::optional<SmallType> small_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return SmallType{dtype, std::numeric_limits<at::BFloat16>::max(), kInfinity};
    case at::kHalf:
      return SmallType{dtype, std::numeric_limits<at::Half>::max(), kInfinity};
    case at::kFloat8_e4m3fn:  // the largest number, 448, stands for infinity; 416 is the next one
      return SmallType{dtype, 416, std::numeric_limits<at::Float8_e4m3fn>::max()};
    case at::kFloat8_e5m2:
      return SmallType{dtype, std::numeric_limits<at::Float8_e5m2>::max(), kInfinity};
    default:
      return std::nullopt;
  }
}

/// The type in which values are scaled. Not half precision, which has too few powers of two.
struct ScaledType {
  at::ScalarType dtype;
  at::ScalarType bits;
  int64_t mantissa_bits;
  int64_t bias;  // bias of the exponent
};

ScaledType scaled_type(at::ScalarType dtype) {
  if (dtype == at::kDouble) return {at::kDouble, at::kLong, 52, 1023};
  return {at::kFloat, at::kInt, 23, 127};
}

double largest_of(at::ScalarType dtype) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "rounding_store", [] {
    return static_cast<double>(std::numeric_limits<scalar_t>::max());
  });
}

/// The tensor's memory as one dimension, in order.
at::Tensor flat(const at::Tensor& tensor) {
  return at::as_strided(tensor, {tensor.numel()}, {1});
}

/// Calls fn(from, size) for all pieces of at most kPieceSize elements.
template <class Fn>
void for_each_piece(int64_t numel, const Fn& fn) {
  for (int64_t from = 0; from < numel; from += kPieceSize)
    fn(from, std::min(kPieceSize, numel - from));
}

/// Values of one tensor, divided by `scale` and rounded, in memory order.
class RoundedValues {
 public:
  RoundedValues(const at::Tensor& values, const SmallType& small)
      : small_(small),
        dtype_(values.scalar_type()),
        largest_(largest_of(dtype_)),
        scale_(scale_for(values, small.largest)),
        rounded_(at::empty({values.numel()}, values.options().dtype(small.dtype))) {
    for_each_piece(values.numel(), [&](int64_t from, int64_t size) {
      const at::Tensor piece = values.narrow(0, from, size).to(scale_.scalar_type()).div(scale_);
      const at::Tensor infinite = piece.sgn().mul(small_.infinity);
      rounded_.narrow(0, from, size)
          .copy_(at::where(piece.isinf(), infinite, piece.clamp(-small_.largest, small_.largest)));
    });
  }

  const at::Tensor& rounded() const { return rounded_; }

  /// The values restored from rounded().
  at::Tensor values_of(const at::Tensor& rounded) const {
    const at::Tensor values = at::empty({rounded.numel()}, rounded.options().dtype(dtype_));
    for_each_piece(rounded.numel(), [&](int64_t from, int64_t size) {
      values.narrow(0, from, size).copy_(piece_of(rounded, from, size));
    });
    return values;
  }
  /// A value that rounding up pushed beyond the type's range becomes the type's largest number.
  at::Tensor piece_of(const at::Tensor& rounded, int64_t from, int64_t size) const {
    const at::Tensor piece = rounded.narrow(0, from, size).to(scale_.scalar_type());
    const at::Tensor finite = piece.mul(scale_).clamp(-largest_, largest_);
    return at::where(piece.abs().ge(small_.infinity), piece.sgn().mul(kInfinity), finite);
  }

  const at::Tensor& scale() const { return scale_; }

  /// Moves the rounded values out.
  at::Tensor take_rounded() { return std::exchange(rounded_, at::Tensor()); }

 private:
  /// A power of two, so that scaling is exact for all but the smallest numbers.
  static at::Tensor scale_for(const at::Tensor& values, double largest) {
    const ScaledType type = scaled_type(values.scalar_type());
    at::Tensor most = at::zeros({}, values.options().dtype(type.dtype));
    for_each_piece(values.numel(), [&](int64_t from, int64_t size) {
      const at::Tensor piece = values.narrow(0, from, size).to(type.dtype).abs();
      most = at::maximum(most, at::where(piece.isfinite(), piece, 0).amax());
    });
    // The scale is 1 if all numbers are 0. The power of two is built from its bits, because exp2()
    // may be inexact.
    const at::Tensor exponent = at::where(most.gt(0), most.div(largest).log2().ceil(), 0)
                                    .clamp(1 - type.bias, type.bias)
                                    .to(type.bits);
    return exponent.add(type.bias).bitwise_left_shift(type.mantissa_bits).view(type.dtype);
  }

  SmallType small_;
  at::ScalarType dtype_;
  double largest_;
  at::Tensor scale_;
  at::Tensor rounded_;
};

/// Both errors of RoundingStats, over finite numbers. Kept on the devices of the tensors, so that
/// add() does not synchronise. Any thread. No op runs under the mutex, because a Python mode may
/// handle it.
class RoundingErrors {
 public:
  void add(const at::Tensor& values, const RoundedValues& of) {
    const auto options = values.options().dtype(at::kDouble);
    at::Tensor most = at::zeros({}, options);
    at::Tensor squares = at::zeros({2}, options);  // sums for scaled differences and scaled values
    for_each_piece(values.numel(), [&](int64_t from, int64_t size) {
      const at::Tensor all = values.narrow(0, from, size).to(at::kDouble);
      const at::Tensor is_number = all.isfinite();
      const at::Tensor piece = at::where(is_number, all, 0);
      const at::Tensor error =
          at::where(is_number, piece.sub(of.piece_of(of.rounded(), from, size)), 0);
      most = at::maximum(most, error.abs().amax());
      squares.add_(
          at::stack({error.div(of.scale()).square().sum(), piece.div(of.scale()).square().sum()}));
    });
    const at::Tensor share = at::where(squares[1].gt(0), squares[0].div(squares[1]), 0).sqrt();
    at::Tensor found = at::stack({most, share});
    while (true) {
      const at::Tensor other = exchange(values.device(), found);
      if (!other.defined()) return;
      found = at::maximum(found, other);
    }
  }

  void read(RoundingStats& stats) const {
    std::unique_lock lock(mutex_);
    const std::unordered_map<c10::Device, at::Tensor> all = errors_;
    lock.unlock();
    for (const auto& [device, errors] : all) {
      stats.max_error = std::max(stats.max_error, errors[0].item<double>());
      stats.max_relative_error = std::max(stats.max_relative_error, errors[1].item<double>());
    }
  }

 private:
  /// Stores `found` if the device has no entry; otherwise removes the entry and returns it.
  at::Tensor exchange(c10::Device device, const at::Tensor& found) {
    const std::lock_guard lock(mutex_);
    at::Tensor& errors = errors_[device];
    if (errors.defined()) return std::exchange(errors, at::Tensor());
    errors = found;
    return {};
  }

  mutable std::mutex mutex_;
  std::unordered_map<c10::Device, at::Tensor> errors_;
};

class Rounding final : public RoundingStore {
 public:
  Rounding(const SmallType& small, std::shared_ptr<OffloadStore> store)
      : small_(small), tickets_(std::move(store), "[rounding_store]") {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    if (!is_rounded(tensor)) return tickets_.put(tensor);
    return tickets_.put(tensor, [&] {
      const at::Tensor values = flat(tensor);
      RoundedValues of(values, small_);
      errors_.add(values, of);
      at::Tensor rounded = of.take_rounded();
      count(tensor, rounded);
      detail::PackedTickets::Unpack unpack = [of = std::move(of)](const at::Tensor& packed) {
        return of.values_of(packed);
      };
      return std::pair(std::move(rounded), std::move(unpack));
    });
  }

  std::optional<OffloadTerms> limits() const override { return tickets_.limits(); }

  RoundingStats stats() const override {
    std::unique_lock lock(mutex_);
    RoundingStats stats = stats_;
    lock.unlock();
    errors_.read(stats);
    return stats;
  }

 private:
  bool is_rounded(const at::Tensor& tensor) const {
    return at::isFloatingType(tensor.scalar_type()) &&
           tensor.itemsize() > c10::elementSize(small_.dtype) && detail::fills_memory(tensor);
  }

  void count(const at::Tensor& tensor, const at::Tensor& rounded) {
    const std::lock_guard lock(mutex_);
    ++stats_.count;
    stats_.tensor_bytes += static_cast<int64_t>(tensor.nbytes());
    stats_.rounded_bytes += static_cast<int64_t>(rounded.nbytes());
  }

  const SmallType small_;
  detail::PackedTickets tickets_;
  RoundingErrors errors_;
  mutable std::mutex mutex_;
  RoundingStats stats_;
};

}  // namespace

std::shared_ptr<MaskStore> mask_store(std::shared_ptr<OffloadStore> store) {
  return std::make_shared<Masks>(std::move(store));
}

std::shared_ptr<RoundingStore> rounding_store(c10::ScalarType dtype,
                                              std::shared_ptr<OffloadStore> store) {
  const std::optional<SmallType> small = small_type(dtype);
  TORCH_CHECK_VALUE(small,
                    "[rounding_store] dtype: expected BFloat16, Half, Float8_e4m3fn or "
                    "Float8_e5m2, got ",
                    dtype, ".");
  return std::make_shared<Rounding>(*small, std::move(store));
}

}  // namespace remat
