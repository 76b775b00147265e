// SPDX-License-Identifier: BSD-3-Clause

// Ends while copies in both directions are under way. The copies use statics, whose destructors run
// in an order that the engine does not know.
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include <remat/offload/disk_memory.h>
#include <remat/offload/offload_engine.h>
#include <remat/offload/sim_link.h>

namespace {

using Tickets = std::vector<std::shared_ptr<remat::OffloadStore::Ticket>>;

constexpr int64_t kBytes = 1 << 20;

std::vector<std::shared_ptr<remat::OffloadEngine>>& engines() {
  static std::vector<std::shared_ptr<remat::OffloadEngine>> engines;
  return engines;
}

Tickets& tickets() {
  static Tickets tickets;
  return tickets;
}

Tickets put(remat::OffloadEngine& engine, int count) {
  Tickets tickets;
  for (int i = 0; i < count; ++i) tickets.push_back(engine.put(torch::ones({kBytes / 4})));
  return tickets;
}

void leave_copies_under_way(remat::OffloadEngine& engine) {
  for (Tickets last = put(engine, 4); !last.empty(); last.pop_back()) last.back()->get();
  Tickets these = put(engine, 4);
  while (engine.stats().left_count < 1) engine.put(torch::ones({1}));
  these[2]->get();  // prefetches others
  tickets().insert(tickets().end(), these.begin(), these.end());
}

}  // namespace

int main() {
  tickets();
  const auto link = remat::sim_link({.gbps = 0.02});
  const auto disk = remat::disk_memory({.directory = std::filesystem::temp_directory_path()});
  for (const auto& memory : {remat::host_memory({.link = link}), remat::host_memory(), disk}) {
    engines().push_back(remat::offload_engine({.memories = {memory}, .min_bytes = 0}));
    leave_copies_under_way(*engines().back());
  }
  const bool is_under_way = engines().front()->stats().leaving_bytes > 0;
  std::puts(is_under_way ? "ends with copies under way" : "expected copies under way, got none");
  return is_under_way ? 0 : 1;
}
