// SPDX-License-Identifier: BSD-3-Clause

// Every system call on a file may fail: the result is an error or the documented fallback, the next
// step is right, and no file is left.
#include <torch/torch.h>

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "offload/disk_file.h"
#include "support/catch.h"
#include "support/silence.h"

#include <remat/offload/offload_engine.h>
#include <remat/offload/sim_link.h>

namespace remat {
namespace {

/// A temporary folder, which must be empty at its end.
class Folder {
 public:
  Folder() : path_("/tmp/remat-disk-test-XXXXXX") { REQUIRE(::mkdtemp(path_.data())); }
  ~Folder() { ::rmdir(path_.c_str()); }

  const std::string& path() const { return path_; }

  size_t file_count() const {
    size_t count = 0;
    DIR* const folder = ::opendir(path_.c_str());
    while (const dirent* const entry = ::readdir(folder)) count += entry->d_name[0] != '.';
    ::closedir(folder);
    return count;
  }

 private:
  std::string path_;
};

enum class Fault : uint8_t { kError, kShort, kPartial, kInterrupted, kSlow };
enum class Call : uint8_t { kAllocate, kWrite, kRead };

/// System calls, of which call number `number` of kind `kind` fails.
class FaultyCalls final : public detail::DiskCalls {
 public:
  FaultyCalls(Call kind, int64_t number, Fault fault, int error)
      : kind_(kind), number_(number), fault_(fault), error_(error) {}

  int allocate(int file, int64_t offset, int64_t bytes) override {
    if (!is_it(Call::kAllocate)) return DiskCalls::allocate(file, offset, bytes);
    if (fault_ == Fault::kSlow) return DiskCalls::allocate(file, offset, bytes);
    errno = error_;
    return -1;
  }
  ssize_t write(int file, const void* data, size_t bytes, int64_t offset) override {
    return with_fault(Call::kWrite, bytes,
                      [&](size_t most) { return DiskCalls::write(file, data, most, offset); });
  }
  ssize_t read(int file, void* data, size_t bytes, int64_t offset) override {
    return with_fault(Call::kRead, bytes,
                      [&](size_t most) { return DiskCalls::read(file, data, most, offset); });
  }
  bool has_come() const { return has_come_; }

 private:
  bool is_it(Call kind) {
    if (kind != kind_ || count_++ != number_) return false;
    has_come_ = true;
    return true;
  }

  template <class Run>
  ssize_t with_fault(Call kind, size_t bytes, const Run& run) {
    if (!is_it(kind)) return run(bytes);
    switch (fault_) {
      case Fault::kShort:
        return run(bytes / 4096 > 1 ? 4096 : bytes) / 2;
      case Fault::kPartial:
        return run(bytes / 4096 > 1 ? 4096 : bytes);
      case Fault::kInterrupted:
        errno = EINTR;
        return -1;
      case Fault::kSlow:
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return run(bytes);
      case Fault::kError:
        errno = error_;
        return -1;
    }
    return -1;
  }

  Call kind_;
  int64_t number_;
  Fault fault_;
  int error_;
  std::atomic<int64_t> count_ = 0;
  std::atomic<bool> has_come_ = false;
};

at::Tensor numbered(int64_t value) {
  return torch::full({5000 + value * 700}, value, torch::kInt);
}

/// Puts six tensors, waits until they have left, and gets them. Returns true if all came back
/// right; errors of get() are added to `errors`.
bool step(OffloadEngine& engine, std::vector<std::string>& errors) {
  std::vector<std::shared_ptr<OffloadStore::Ticket>> tickets;
  for (int64_t i = 0; i < 6; ++i) tickets.push_back(engine.put(numbered(i)));
  const at::Tensor held = torch::zeros({4096});  // Never leaves; each put lets the engine look.
  tickets.push_back(engine.put(held));
  for (int tries = 0; tries < 2000 && engine.stats().leaving_bytes > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    tickets.push_back(engine.put(held));
  }
  bool is_right = true;
  for (int64_t i = 5; i >= 0; --i) {
    try {
      is_right = is_right && tickets[static_cast<size_t>(i)]->get().equal(numbered(i));
    } catch (const std::exception& error) {
      errors.emplace_back(error.what());
    }
  }
  return is_right;
}

OffloadOptions options_with(std::shared_ptr<OffloadMemory> memory) {
  return {.memories = {std::move(memory)}, .min_bytes = 4096};
}

TEST_CASE("What was written to disk comes back", "[offload][disk]") {
  const Folder folder;
  const bool checksums = GENERATE(false, true);
  const auto memory = disk_memory({.directory = folder.path(), .checksums = checksums});
  const auto engine = offload_engine(options_with(memory));
  std::vector<std::string> errors;
  int64_t after_two = 0;
  for (int i = 0; i < 20; ++i) {
    CHECK(step(*engine, errors));
    if (i == 1) after_two = memory->system_bytes();
  }
  CHECK(errors.empty());
  CHECK(engine->stats().left_count > 20);
  CHECK(memory->system_bytes() == after_two);
  CHECK(folder.file_count() == 0);
}

TEST_CASE("A fault at any call of the system is an error or a fallback", "[offload][disk]") {
  struct Kind {
    Call call;
    Fault fault;
    int error;
    bool is_noticed;
  };
  const Kind kind = GENERATE(
      Kind{Call::kAllocate, Fault::kError, ENOSPC, true},
      Kind{Call::kAllocate, Fault::kError, EIO, true},
      Kind{Call::kAllocate, Fault::kError, EOPNOTSUPP, false},
      Kind{Call::kWrite, Fault::kError, ENOSPC, true}, Kind{Call::kWrite, Fault::kError, EIO, true},
      Kind{Call::kWrite, Fault::kShort, 0, true}, Kind{Call::kWrite, Fault::kPartial, 0, false},
      Kind{Call::kWrite, Fault::kInterrupted, 0, false}, Kind{Call::kWrite, Fault::kSlow, 0, false},
      Kind{Call::kRead, Fault::kError, EIO, true}, Kind{Call::kRead, Fault::kShort, 0, true},
      Kind{Call::kRead, Fault::kPartial, 0, false},
      Kind{Call::kRead, Fault::kInterrupted, 0, false}, Kind{Call::kRead, Fault::kSlow, 0, false});
  const Folder folder;
  const Silence warnings;
  for (int64_t number = 0; number < 5; ++number) {
    INFO("call " << static_cast<int>(kind.call) << ", fault " << static_cast<int>(kind.fault)
                 << ", error " << kind.error << ", number " << number);
    const auto calls = std::make_shared<FaultyCalls>(kind.call, number, kind.fault, kind.error);
    const auto engine =
        offload_engine(options_with(detail::disk_memory_by({.directory = folder.path()}, calls)));
    std::vector<std::string> errors;
    CHECK(step(*engine, errors));
    REQUIRE(calls->has_come());
    const bool is_lost = kind.is_noticed && kind.call == Call::kRead;
    CHECK(errors.size() == (is_lost ? 1 : 0));
    if (is_lost)
      CHECK_THAT(errors[0], ContainsSubstring("expected disk to give it back, got: read"));
    errors.clear();
    CHECK(step(*engine, errors));
    CHECK(errors.empty());
    CHECK(engine->stats().full_count == (kind.is_noticed && !is_lost ? 1 : 0));
    CHECK(engine->stats().away_bytes == 0);
  }
  CHECK(folder.file_count() == 0);
}

/// Reads back other bytes than were written.
struct Rotten final : detail::DiskCalls {
  ssize_t read(int file, void* data, size_t bytes, int64_t offset) override {
    const ssize_t count = DiskCalls::read(file, data, bytes, offset);
    static_cast<char*>(data)[100] ^= 1;
    return count;
  }
};

TEST_CASE("Checksums notice other bytes", "[offload][disk]") {
  const Folder folder;
  const auto engine = offload_engine(options_with(detail::disk_memory_by(
      {.directory = folder.path(), .checksums = true}, std::make_shared<Rotten>())));
  std::vector<std::string> errors;
  step(*engine, errors);
  REQUIRE(errors.size() >= 4);
  CHECK_THAT(errors[0], ContainsSubstring("expected the bytes that were written, got others"));
}

TEST_CASE("A full disk hands over to host memory", "[offload][disk]") {
  const Folder folder;
  OffloadOptions options =
      options_with(disk_memory({.directory = folder.path(), .max_bytes = 50000}));
  options.memories.push_back(host_memory());
  const Silence warnings;
  const auto engine = offload_engine(options);
  std::vector<std::string> errors;
  for (int i = 0; i < 3; ++i) CHECK(step(*engine, errors));
  CHECK(errors.empty());
  CHECK(warnings.texts().empty());
  CHECK(engine->stats().full_count == 0);
  CHECK(options.memories[0]->system_bytes() <= 50000);
  CHECK(options.memories[1]->system_bytes() > 0);
}

TEST_CASE("Pieces of any sizes fit where others were", "[offload][disk]") {
  const Folder folder;
  const auto disk = disk_memory({.directory = folder.path(), .max_bytes = 10 * 4096});
  const auto take = [&](int64_t bytes) { return disk->take(bytes, at::kCPU); };
  std::vector<std::unique_ptr<OffloadMemory::Block>> blocks;
  for (int i = 0; i < 10; ++i) REQUIRE(blocks.emplace_back(take(4000)));
  CHECK_FALSE(take(1));
  for (const size_t i : {3, 5, 4, 9}) blocks[i] = nullptr;
  CHECK_FALSE(take(3 * 4096 + 1));
  const auto one = take(1);  // block 9's place, since the places of 3 to 5 form one larger gap
  auto three = take(3 * 4096);
  REQUIRE(one);
  REQUIRE(three);
  CHECK_FALSE(take(1));
  three = nullptr;
  const auto first = take(4096);
  const auto rest = take(2 * 4096);
  CHECK(first);
  CHECK(rest);
  CHECK_FALSE(take(1));
  CHECK(disk->system_bytes() == 10 * 4096);
}

TEST_CASE("A folder that is not there is named", "[offload][disk]") {
  CHECK_THROWS_WITH(
      disk_memory({.directory = "/nowhere/at/all"}),
      ContainsSubstring(
          "expected a folder to make a file in, got '/nowhere/at/all': No such file"));
  CHECK_THROWS_WITH(disk_memory({.directory = "/tmp", .max_bytes = -1}),
                    ContainsSubstring("max_bytes: expected 0 or more"));
}

}  // namespace
}  // namespace remat
