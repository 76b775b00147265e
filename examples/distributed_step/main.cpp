// SPDX-License-Identifier: BSD-3-Clause

// Two ranks train one layer of a tensor-parallel model. Replays of the layer repeat no all-reduce
// and change no bit of a gradient.
#include <fmt/format.h>
#include <remat/remat.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr int kRanks = 2;
constexpr int kSteps = 3;
constexpr int64_t kWidth = 64;

// A c10d backend that all-reduces dense CPU tensors through a store. It sums in the order of ranks,
// so that all ranks get the same bits. LibTorch's wheels have the header of Gloo's backend but not
// the Gloo headers that it includes; if you have those, use c10d::ProcessGroupGloo.
class StoreBackend final : public c10d::Backend {
 public:
  StoreBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : Backend(rank, size), store_(std::move(store)) {}

  const std::string getBackendName() const override { return "store"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    TORCH_CHECK_NOT_IMPLEMENTED(options.reduceOp == c10d::ReduceOp::SUM,
                                "[store_backend] reduceOp: expected SUM, got another.");
    for (at::Tensor& tensor : tensors) sum_over_ranks(tensor);
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    done->markCompleted();
    return c10d::Work::create_from_future(done);
  }

  // Number of all-reduces of this rank so far.
  int64_t executed() const { return executed_; }

 private:
  // Each rank puts its bytes into the store under its own key and sums the bytes of all ranks.
  void sum_over_ranks(at::Tensor& tensor) {
    const std::string key = std::to_string(executed_++) + "/";
    const at::Tensor own = tensor.contiguous();
    const auto* begin = static_cast<const uint8_t*>(own.const_data_ptr());
    store_->set(key + std::to_string(getRank()), std::vector<uint8_t>(begin, begin + own.nbytes()));
    at::Tensor sum = at::zeros_like(own);
    for (int rank = 0; rank < getSize(); ++rank) {
      // blocks until that rank has put its bytes
      std::vector<uint8_t> bytes = store_->get(key + std::to_string(rank));
      sum.add_(at::from_blob(bytes.data(), own.sizes(), own.options()));
    }
    tensor.copy_(sum);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int64_t executed_ = 0;
};

at::Tensor summed(const at::Tensor& part, const Group& group) {
  std::vector<at::Tensor> tensors = {part.clone()};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

// The layer's input. All ranks have the whole input, and each rank computes a part of its gradient,
// so backward adds the parts.
struct Entry : torch::autograd::Function<Entry> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Group& group) {
    context->saved_data["group"] = group;
    return x.view_as(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {summed(gradients[0], context->saved_data["group"].toCustomClass<c10d::ProcessGroup>()),
            {}};
  }
};

// The layer's output. Each rank computes a part of the sum, so forward adds the parts; all ranks
// have the whole gradient of the output.
struct Exit : torch::autograd::Function<Exit> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& part,
                            const Group& group) {
    return summed(part, group);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], {}};
  }
};

// A multilayer perceptron whose inner channels are split over the ranks.
struct Layer {
  at::Tensor first = torch::randn({kWidth, 2 * kWidth}).div_(8).requires_grad_(true);
  at::Tensor second = torch::randn({2 * kWidth, kWidth}).div_(8).requires_grad_(true);
  Group group;

  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor inner = torch::gelu(Entry::apply(x, group).matmul(first));
    return torch::tanh(Exit::apply(inner.matmul(second), group));
  }
};

struct Run {
  std::vector<at::Tensor> gradients;
  int64_t all_reduces = 0;
  size_t kept_bytes = 0;
};

// `wrap` turns the layer into the function to train; nothing else differs between the runs.
template <class Wrap>
Run train(const Group& group, const StoreBackend& backend, const Wrap& wrap) {
  torch::manual_seed(group->getRank());  // different weights on each rank
  const Layer layer{.group = group};
  torch::manual_seed(kRanks);  // the same input on all ranks
  at::Tensor x = torch::randn({32, kWidth}).requires_grad_(true);
  const auto call = wrap(layer);
  Run run;
  const int64_t before = backend.executed();
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = call(x).square().sum();
    run.kept_bytes = remat::memory_report().bytes;
    loss.backward();
    for (const at::Tensor& tensor : {x, layer.first, layer.second}) {
      run.gradients.push_back(tensor.grad().clone());
    }
  }
  run.all_reduces = backend.executed() - before;
  return run;
}

bool same_bits(const Run& one, const Run& other) {
  bool same = one.gradients.size() == other.gradients.size();
  for (size_t i = 0; same && i < one.gradients.size(); ++i) {
    same = at::equal(one.gradients[i].view(at::kInt), other.gradients[i].view(at::kInt));
  }
  return same;
}

bool run_rank(int rank, const std::string& store_path) {
  const auto store = c10::make_intrusive<c10d::FileStore>(store_path, kRanks);
  const auto backend = c10::make_intrusive<StoreBackend>(store, rank, kRanks);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, kRanks);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);

  const Run plain = train(group, *backend, [](const Layer& layer) { return layer; });
  bool right = true;
  for (const remat::ReplayEngine replay :
       {remat::ReplayEngine::kFunction, remat::ReplayEngine::kTape}) {
    const Run run = train(group, *backend, [replay](const Layer& layer) {
      return remat::checkpoint({.name = "layer", .replay = replay})(layer);
    });
    const bool same = same_bits(plain, run);
    right = right && same && run.all_reduces == plain.all_reduces;
    fmt::print("rank {} {}: {} all-reduces, plain {}; {} B kept; gradients bitwise equal: {}\n",
               rank, replay == remat::ReplayEngine::kTape ? "tape" : "function", run.all_reduces,
               plain.all_reduces, run.kept_bytes, same ? "yes" : "no");
  }
  return right;
}

int run_child(int rank, const std::string& store_path) {
  try {
    return run_rank(rank, store_path) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    fmt::print(stderr, "[distributed_step] rank {}: {}\n", rank, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace

int main() {
  char store_path[] = "/tmp/distributed_step_XXXXXX";
  const int file = mkstemp(store_path);
  if (file < 0) {
    std::perror("[distributed_step] a file for the store");
    return EXIT_FAILURE;
  }
  close(file);
  // Fork before LibTorch starts threads, which a child would not have.
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() == 0) {
      const int status = run_child(rank, store_path);
      std::fflush(nullptr);
      _exit(status);
    }
  }
  bool right = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    right = wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 && right;
  }
  unlink(store_path);
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
