// SPDX-License-Identifier: BSD-3-Clause

// Counting the nodes of replays, and renumbering nodes made by backwards with create_graph.
#include <remat/engine/replayed_nodes.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace remat {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

thread_local bool replays = false;

/// True if the current thread is one of autograd's device threads.
bool is_of_autograd() {
  static thread_local const bool is = c10::getThreadName().rfind("pt_autograd_", 0) == 0;
  return is;
}

/// Numbers of the nodes that one of autograd's threads has made.
struct ThreadNodes {
  /// True if the node with this number is not yet renumbered.
  bool is_new(uint64_t number) const { return number >= next; }

  /// The number that the node `number`, not yet renumbered, would have without replays.
  uint64_t plain(uint64_t number) const {
    uint64_t shift = before;
    for (const auto& [begin, end] : replayed) {
      if (end <= number) shift += end - begin;
    }
    return number - shift;
  }

  void forget_replays() {
    for (const auto& [begin, end] : replayed) {
      before += end - begin;
      next = std::max(next, end);
    }
    replayed.clear();
  }

  uint64_t next = 0;                                      // first number that is not yet renumbered
  uint64_t before = 0;                                    // number of nodes in forgotten replays
  std::vector<std::pair<uint64_t, uint64_t>> replayed{};  // each replay's begin and end, in order
};

struct Shared {
  std::mutex mutex;
  size_t backwards = 0;  // running backwards with create_graph
  std::unordered_map<uint64_t, ThreadNodes> threads;
};

Shared& shared() {
  static auto& instance = *new Shared;  // threads may use it until the process ends
  return instance;
}

/// Follows edges from `ends` while `is_made` holds. Returns the nodes met, each once.
template <class IsMade>
std::vector<Node*> nodes_made(const edge_list& ends, const IsMade& is_made) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> nodes;
  const auto add = [&](const edge_list& edges) {
    for (const Edge& edge : edges) {
      Node* const node = edge.function.get();
      if (node && is_made(*node) && seen.insert(node).second) nodes.push_back(node);
    }
  };
  add(ends);
  for (size_t i = 0; i < nodes.size(); ++i) add(nodes[i]->next_edges());
  return nodes;
}

void renumber(const edge_list& ends, uint64_t caller, uint64_t begin) {
  const std::lock_guard<std::mutex> lock(shared().mutex);
  auto& threads = shared().threads;
  if (threads.empty()) return;
  const auto is_made = [&](const Node& node) {
    if (node.sequence_nr() == std::numeric_limits<uint64_t>::max()) return false;  // a leaf
    if (node.thread_id() == caller) return node.sequence_nr() >= begin;
    const auto thread = threads.find(node.thread_id());
    return thread == threads.end() || thread->second.is_new(node.sequence_nr());
  };
  std::unordered_map<uint64_t, uint64_t> next;
  for (Node* const node : nodes_made(ends, is_made)) {
    const auto thread = threads.find(node->thread_id());
    if (thread == threads.end() || node->thread_id() == caller) continue;
    uint64_t& after = next[node->thread_id()];
    after = std::max(after, node->sequence_nr() + 1);
    node->set_sequence_nr(thread->second.plain(node->sequence_nr()));
  }
  for (const auto& [thread, after] : next) threads[thread].next = after;
}

}  // namespace

ReplayedNodes::ReplayedNodes()
    : begin_(replays || !is_of_autograd() ? kNotCounted : at::sequence_number::peek()) {
  if (is_counted()) replays = true;
}

ReplayedNodes::~ReplayedNodes() {
  if (!is_counted()) return;
  replays = false;
  const std::lock_guard<std::mutex> lock(shared().mutex);
  ThreadNodes& nodes = shared().threads[at::RecordFunction::currentThreadId()];
  nodes.replayed.emplace_back(begin_, at::sequence_number::peek());
  if (shared().backwards == 0) nodes.forget_replays();
}

NumberedNodes::NumberedNodes()
    : thread_(at::RecordFunction::currentThreadId()), begin_(at::sequence_number::peek()) {
  const std::lock_guard<std::mutex> lock(shared().mutex);
  ++shared().backwards;
}

NumberedNodes::~NumberedNodes() {
  const std::lock_guard<std::mutex> lock(shared().mutex);
  if (--shared().backwards > 0) return;
  for (auto& [thread, nodes] : shared().threads) nodes.forget_replays();
}

void NumberedNodes::number(const torch::autograd::variable_list& results) const {
  edge_list ends;
  for (const at::Tensor& result : results) {
    if (result.defined() && result.grad_fn()) ends.emplace_back(result.grad_fn(), 0);
  }
  renumber(ends, thread_, begin_);
}

void NumberedNodes::number_grads(const edge_list& roots) const {
  edge_list ends;
  for (Node* const node : nodes_made(roots, [](const Node&) { return true; })) {
    const auto* const leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node);
    if (!leaf) continue;
    const at::Tensor& grad = leaf->variable.grad();
    if (grad.defined() && grad.grad_fn()) ends.emplace_back(grad.grad_fn(), 0);
  }
  renumber(ends, thread_, begin_);
}

}  // namespace remat
