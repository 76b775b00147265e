// SPDX-License-Identifier: BSD-3-Clause

// Where a tensor lay that autograd saved, should somebody else still have that memory in backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <string>

#include <remat/tape/export.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

/// Note [Memory that others hold]: what autograd saves is memory, no copy. Others may have it, too:
/// an attribute of a custom function's context (`ctx.buffer = y`), who got the region's result, a
/// list. They see what a backward writes to it (a custom function's, in place), and backward sees
/// what the host writes. So while somebody has that memory, backward gets it, and the value of a
/// replay goes. When nobody has, nobody can tell it from that value. Where hooks are, plain code
/// saves what they make of it, which may be a copy or not: there backward gets the value, and a
/// backward that writes it raises at its end if somebody has the memory.
///
/// A replay makes what was saved. If the memory has something else by then, it was written without
/// a new version: by the host or by way of `data`, which plain code would see; or autograd's sum of
/// gradients has taken it, as it takes what nobody else has, and in plain code autograd itself has
/// what it saves. So that raises. On devices it is not looked at, as that would wait for them.
///
/// Does not keep the memory alive.
class REMAT_API ForwardMemory {
 public:
  /// Of `tensor`, for which has_layout() holds. `is_hooked`: hooks would get it in plain code.
  ForwardMemory(const at::Tensor& tensor, bool is_hooked);

  bool is_hooked() const { return is_hooked_; }

  /// True if nobody has the memory any more.
  bool is_gone() const { return storage_.expired(); }

  /// The tensor, of which `meta` is, as it lay there, outside any graph; undefined if nobody has
  /// the memory any more, or somebody has made it smaller. Throws, with `where`, if it is not
  /// `value`, which a replay has made of it or a store has brought back; one that is undefined is
  /// not compared. From any thread.
  at::Tensor lock(const TensorMeta& meta, const at::Tensor& value,
                  c10::function_ref<std::string()> where) const;

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  int64_t offset_;
  std::unique_ptr<const int64_t[]> strides_;  // null for a contiguous one
  bool conjugated_;
  bool negated_;
  bool is_hooked_;
};

}  // namespace remat
