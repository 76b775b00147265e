// SPDX-License-Identifier: BSD-3-Clause

#include "replay_sides.h"

#include <string>

#include "op_comparison.h"

namespace remat::detail {
namespace {

std::unordered_map<size_t, size_t> numbered(const std::vector<size_t>& ops) {
  std::unordered_map<size_t, size_t> numbers;
  for (const size_t op : ops) numbers.emplace(op, numbers.size());
  return numbers;
}

}  // namespace

ReplaySides::ReplaySides(const RecordedOrigins& origins, const FunctionReplay& replay)
    : all_(origins),
      forward_(compared(replay, replay.forward)),
      again_(compared(replay, replay.again)),
      in_forward_(numbered(forward_)),
      in_again_(numbered(again_)) {
  for (const size_t op : forward_) {
    for (const TensorOrigin& origin : forward_origins(op)) {
      if (origin.kind == OriginKind::kOutside) outside_.emplace(origin.storage, outside_.size());
    }
  }
}

std::vector<size_t> ReplaySides::compared(const FunctionReplay& replay,
                                          const std::vector<size_t>& ops) {
  const std::unordered_set<size_t> all(ops.begin(), ops.end());
  std::vector<size_t> left;
  for (const size_t op : ops) {
    const auto& event = all_.recording.ops[op];
    if (is_view(all_.recording.text(event.name))) continue;
    if (replay.runs_again(event) && !is_weight_cast(op, all)) {
      left.push_back(op);
    } else {
      left_out_.insert(op);
    }
  }
  return left;
}

/// True for a cast of a tensor that none of these ops made.
bool ReplaySides::is_weight_cast(size_t op, const std::unordered_set<size_t>& inside) const {
  const auto& event = all_.recording.ops[op];
  if (!is_cast(all_.recording.text(event.name)) || event.arguments.empty() || event.results.empty())
    return false;
  const RecordedLayout& from = all_.recording.layouts[event.arguments[0].layout];
  const std::string& to =
      all_.recording.text(all_.recording.layouts[event.results[0].layout].dtype);
  if (!from.requires_grad || all_.recording.text(from.dtype) != "float32" ||
      (to != "bfloat16" && to != "float16"))
    return false;
  size_t maker = all_.arguments[op][0].maker;
  while (maker != kNoOp && inside.count(maker) == 0) maker = all_.nesting.caller(maker);
  return maker == kNoOp;
}

std::vector<TensorOrigin> ReplaySides::origins(size_t op, const Numbers& numbers) const {
  const auto& event = all_.recording.ops[op];
  std::vector<TensorOrigin> origins;
  for (size_t i = 0; i < all_.arguments[op].size(); ++i) {
    origins.push_back(origin(all_.arguments[op][i], numbers));
    if (origins.back().kind == OriginKind::kOutside &&
        is_number(all_.recording, event.arguments[i]))
      origins.back() = {};
  }
  return origins;
}

TensorOrigin ReplaySides::origin(const StorageOrigin& origin, const Numbers& numbers) const {
  if (origin.storage == 0) return {};
  for (size_t op = origin.maker; op != kNoOp; op = all_.nesting.caller(op)) {
    const auto known = numbers.find(op);
    if (known != numbers.end()) return {OriginKind::kMade, known->second, 0, origin.storage};
    if (left_out_.count(op) > 0) return {};
  }
  const auto met = outside_.find(origin.storage);
  const size_t number = met == outside_.end() ? TensorOrigin::kElsewhere : met->second;
  return {OriginKind::kOutside, number, 0, origin.storage};
}

}  // namespace remat::detail
