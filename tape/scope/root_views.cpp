// SPDX-License-Identifier: BSD-3-Clause

// Hashing the nodes of views.
#include "root_views.h"

#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "hash_mix.h"

namespace remat {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::Edge;
using torch::autograd::Node;

/// Nodes of views that are determined by the result's shape or output number.
constexpr std::array<std::string_view, 12> kViews = {
    "Alias", "Conj",   "Expand",     "ReshapeAlias", "Split", "Squeeze",
    "T",     "Unbind", "UnsafeView", "Unsqueeze",    "View",  "Detach"};

class ViewHash {
 public:
  void add(uint64_t number) { hash_ = hash_mix(hash_, number); }
  void add(const c10::SymInt& number) {
    add(static_cast<uint64_t>(number.maybe_as_int().value_or(0)));
  }
  void add(const std::optional<c10::SymInt>& number) {
    add(uint64_t{number.has_value()});
    if (number) add(*number);
  }
  template <class List>
  void add_all(const List& numbers) {
    for (const auto& number : numbers) add(number);
  }
  uint64_t get() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

bool is_view(const std::string& node) {
  return std::any_of(kViews.begin(), kViews.end(), [&](std::string_view view) {
    return node.starts_with(view) &&
           std::string_view(node).substr(view.size()).starts_with("Backward");
  });
}

/// Returns false if `node` is not a view's node.
bool add_view(const Node& node, ViewHash& hash) {
  if (const auto* const select = dynamic_cast<const generated::SelectBackward0*>(&node)) {
    hash.add(static_cast<uint64_t>(select->dim));
    hash.add(select->index);
  } else if (const auto* const slice = dynamic_cast<const generated::SliceBackward0*>(&node)) {
    hash.add(static_cast<uint64_t>(slice->dim));
    hash.add(slice->start);
    hash.add(slice->end);
    hash.add(slice->step);
  } else if (const auto* const strided =
                 dynamic_cast<const generated::AsStridedBackward0*>(&node)) {
    hash.add_all(strided->stride);
    hash.add(strided->storage_offset);
  } else if (const auto* const diagonal =
                 dynamic_cast<const generated::DiagonalBackward0*>(&node)) {
    hash.add(static_cast<uint64_t>(diagonal->dim1));
    hash.add(static_cast<uint64_t>(diagonal->dim2));
    hash.add(static_cast<uint64_t>(diagonal->offset));
  } else if (const auto* const permute = dynamic_cast<const generated::PermuteBackward0*>(&node)) {
    for (const int64_t dim : permute->dims) hash.add(static_cast<uint64_t>(dim));
  } else if (const auto* const transpose =
                 dynamic_cast<const generated::TransposeBackward0*>(&node)) {
    hash.add(static_cast<uint64_t>(transpose->dim0));
    hash.add(static_cast<uint64_t>(transpose->dim1));
  } else if (dynamic_cast<const generated::TBackward0*>(&node)) {
    hash.add(uint64_t{1});
  } else {
    return is_view(node.name());
  }
  return true;
}

}  // namespace

uint64_t hash_of_views(const EdgeList& roots) {
  ViewHash hash;
  for (const Edge& root : roots) {
    const Edge* edge = &root;
    while (edge->function && add_view(*edge->function, hash)) {
      if (edge->input_nr != 0) hash.add(uint64_t{edge->input_nr});
      if (edge->function->num_outputs() == 0) break;
      edge = &edge->function->next_edge(0);
    }
  }
  return hash.get();
}

}  // namespace remat
