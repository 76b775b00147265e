// SPDX-License-Identifier: BSD-3-Clause

// Hashing the nodes of views.
#include <remat/engine/graph_walk.h>

#include <torch/csrc/autograd/generated/Functions.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <remat/engine/hash_mix.h>

namespace remat {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::Edge;
using torch::autograd::Node;

/// Nodes of views without parameters to hash, because the shape or the output number shows them.
constexpr std::array<std::string_view, 12> kViews = {
    "Alias", "Conj",   "Expand",     "ReshapeAlias", "Split", "Squeeze",
    "T",     "Unbind", "UnsafeView", "Unsqueeze",    "View",  "Detach"};

void add(uint64_t& hash, uint64_t number) {
  hash = hash_mix(hash, number);
}
void add(uint64_t& hash, const c10::SymInt& number) {
  add(hash, static_cast<uint64_t>(number.maybe_as_int().value_or(0)));
}
void add(uint64_t& hash, int64_t number) {
  add(hash, static_cast<uint64_t>(number));
}
void add(uint64_t& hash, const std::optional<c10::SymInt>& number) {
  add(hash, uint64_t{number.has_value()});
  if (number) add(hash, *number);
}

bool is_view(const std::string& node) {
  return std::any_of(kViews.begin(), kViews.end(), [&](std::string_view view) {
    return node.starts_with(view) &&
           std::string_view(node).substr(view.size()).starts_with("Backward");
  });
}

/// Adds to `hash` the parameters of the view that made `node`. Returns false if no view made it.
bool add_view(const Node& node, uint64_t& hash) {
  const auto add_all = [&](const auto&... facts) { (add(hash, facts), ...); };
  if (const auto* const select = dynamic_cast<const generated::SelectBackward0*>(&node)) {
    add_all(select->dim, select->index);
  } else if (const auto* const slice = dynamic_cast<const generated::SliceBackward0*>(&node)) {
    add_all(slice->dim, slice->start, slice->end, slice->step);
  } else if (const auto* const strided =
                 dynamic_cast<const generated::AsStridedBackward0*>(&node)) {
    for (const c10::SymInt& stride : strided->stride) add(hash, stride);
    add(hash, strided->storage_offset);
  } else if (const auto* const diagonal =
                 dynamic_cast<const generated::DiagonalBackward0*>(&node)) {
    add_all(diagonal->dim1, diagonal->dim2, diagonal->offset);
  } else if (const auto* const permute = dynamic_cast<const generated::PermuteBackward0*>(&node)) {
    for (const int64_t dim : permute->dims) add(hash, dim);
  } else if (const auto* const transpose =
                 dynamic_cast<const generated::TransposeBackward0*>(&node)) {
    add_all(transpose->dim0, transpose->dim1);
  } else if (dynamic_cast<const generated::TBackward0*>(&node)) {
    add(hash, uint64_t{1});
  } else {
    return is_view(node.name());
  }
  return true;
}

}  // namespace

uint64_t hash_of_views(const EdgeList& roots) {
  uint64_t hash = 0;
  for (const Edge& root : roots) {
    const Edge* edge = &root;
    while (edge->function && add_view(*edge->function, hash)) {
      if (edge->input_nr != 0) add(hash, uint64_t{edge->input_nr});
      if (edge->function->num_outputs() == 0) break;
      edge = &edge->function->next_edge(0);
    }
  }
  return hash;
}

}  // namespace remat
