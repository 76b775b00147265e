// SPDX-License-Identifier: BSD-3-Clause

// Outside tensors that are written after a region has read them. Gradients are as in plain
// autograd, or an error is raised; a gradient is never silently wrong.
#include <remat/remat.h>

#include "support/catch.h"

#include <ATen/native/Resize.h>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <remat/engine/gathered_memory.h>

#include "support/default_device.h"
#include "support/same_bits.h"

namespace {

using remat::checkpoint;
using Tensor = at::Tensor;

constexpr const char* kInPlaceError = "modified by an inplace operation";

remat::CheckpointOptions named_block() {
  remat::CheckpointOptions options;
  options.name = "outside";
  return options;
}

// Outcome of a run: an error, or an output and gradients.
struct Outcome {
  std::string error;
  Tensor y;
  Tensor x_grad;
  Tensor w_grad;
};

// Runs `step` on operands with the same values in each call. `step` returns the output and leaves
// gradients in x and w.
Outcome attempt(bool w_requires_grad,
                const std::function<Tensor(const Tensor& x, Tensor& w)>& step) {
  torch::manual_seed(3);
  const Tensor x = torch::rand({4, 4}).requires_grad_();
  Tensor w = torch::rand({4, 4}).requires_grad_(w_requires_grad);
  Outcome outcome;
  try {
    outcome.y = step(x, w);
  } catch (const c10::Error& error) {
    outcome.error = error.what_without_backtrace();
  }
  outcome.x_grad = x.grad();
  outcome.w_grad = w.grad();
  return outcome;
}

void check_equal(const Outcome& plain, const Outcome& ours) {
  CHECK(plain.error.empty());
  CHECK(ours.error.empty());
  CHECK(same_bits(plain.y, ours.y));
  CHECK(same_bits(plain.x_grad, ours.x_grad));
  CHECK(same_bits(plain.w_grad, ours.w_grad));
}

void check_in_place_error(const std::string& error, const std::string& where) {
  CHECK_THAT(error, ContainsSubstring(kInPlaceError) &&
                        ContainsSubstring(remat::on_default_device("region 'outside', " + where)) &&
                        ContainsSubstring("; expected version "));
}

// A way in which autograd saves the outside tensor.
struct Saver {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& w)> run;
  bool has_region = false;
};

const std::vector<Saver> kSavers = {
    {"the tensor itself", [](const Tensor& x, const Tensor& w) { return x * w; }},
    {"a view of it", [](const Tensor& x, const Tensor& w) { return x.matmul(w.t()); }},
    {"by linear, then gelu",
     [](const Tensor& x, const Tensor& w) { return torch::gelu(torch::linear(x, w)); }},
    {"two ops on", [](const Tensor& x, const Tensor& w) { return (x.sin() / w).exp(); }},
    {"in an inner region",
     [](const Tensor& x, const Tensor& w) {
       return checkpoint(named_block())([w](const Tensor& t) { return t.sin() * w; })(x).exp();
     },
     /*has_region=*/true},
};

// A way to write the outside tensor.
struct Writer {
  const char* name;
  std::function<void(Tensor& w)> run;
};

const std::vector<Writer> kWriters = {
    {"add_", [](Tensor& w) { w.add_(1); }},
    {"copy_", [](Tensor& w) { w.copy_(w * 2); }},
    {"through a view", [](Tensor& w) { w[1].fill_(3); }},
    {"an optimizer step",
     [](Tensor& w) {
       if (!w.requires_grad()) return void(w.sub_(0.1));
       w.mutable_grad() = torch::ones_like(w);
       torch::optim::AdamW(std::vector<Tensor>{w}, /*lr=*/0.1).step();
     }},
};

void write(const Writer& writer, Tensor& w) {
  const at::NoGradGuard no_grad;
  writer.run(w);
}

// Calls `check(saver, writer, w_requires_grad)` for all combinations.
template <class Check>
void for_all(const Check& check) {
  for (const Saver& saver : kSavers) {
    for (const Writer& writer : kWriters) {
      for (const bool w_requires_grad : {false, true}) {
        CAPTURE(saver.name, writer.name, w_requires_grad);
        check(saver, writer, w_requires_grad);
      }
    }
  }
}

using Region = std::function<Tensor(const Tensor& x, Tensor& w)>;

// Calls `region` as plain code, or checkpointed with w captured.
Tensor call(bool checkpointed, const Region& region, const Tensor& x, Tensor& w) {
  if (!checkpointed) return region(x, w);
  return checkpoint(named_block())([region, w](const Tensor& t) {
    Tensor same = w;
    return region(t, same);
  })(x);
}

TEST_CASE("A write between forward and backward raises as plain does", "[backend][outside]") {
  for_all([](const Saver& saver, const Writer& writer, bool w_requires_grad) {
    const auto step = [&](bool checkpointed) {
      return attempt(w_requires_grad, [&](const Tensor& x, Tensor& w) {
        const Tensor y = call(checkpointed, saver.run, x, w);
        write(writer, w);
        y.sum().backward();
        return y;
      });
    };
    CHECK_THAT(step(false).error, ContainsSubstring(kInPlaceError));
    const Outcome ours = step(true);
    check_in_place_error(ours.error, "slot ");
    CHECK_FALSE(ours.x_grad.defined());
  });
}

TEST_CASE("A write inside the region, after the save, raises as plain does", "[backend][outside]") {
  for_all([](const Saver& saver, const Writer& writer, bool w_requires_grad) {
    const Region region = [&](const Tensor& x, Tensor& w) {
      const Tensor y = saver.run(x, w);
      write(writer, w);
      return y;
    };
    const auto step = [&](bool checkpointed) {
      return attempt(w_requires_grad, [&](const Tensor& x, Tensor& w) {
        const Tensor y = call(checkpointed, region, x, w);
        y.sum().backward();
        return y;
      });
    };
    CHECK_THAT(step(false).error, ContainsSubstring(kInPlaceError));
    check_in_place_error(step(true).error, "slot ");
  });
}

TEST_CASE("A write inside the region, before the save, is done once", "[backend][outside]") {
  for_all([](const Saver& saver, const Writer& writer, bool w_requires_grad) {
    const Region region = [&](const Tensor& x, Tensor& w) {
      write(writer, w);
      return saver.run(x, w);
    };
    const auto step = [&](bool checkpointed) {
      return attempt(w_requires_grad, [&](const Tensor& x, Tensor& w) {
        const Tensor y = call(checkpointed, region, x, w);
        y.sum().backward();
        return y;
      });
    };
    check_equal(step(false), step(true));
  });
}

TEST_CASE("A write of a tensor without elements changes nothing", "[backend][outside]") {
  const auto step = [](bool checkpointed) {
    return [checkpointed](const Tensor& x, Tensor&) {
      const Tensor none = at::zeros({0, 4});
      const auto fn = [none](const Tensor& in) {
        none.add_(1);  // runs in the replay once more: there are no bytes to keep a copy of
        return in.sin() * at::cat({none, none}).sum() + (none * in[0]).sum();
      };
      const Tensor y = checkpointed ? checkpoint(named_block())(fn)(x) : fn(x);
      y.sum().backward();
      return y;
    };
  };
  check_equal(attempt(false, step(false)), attempt(false, step(true)));
}

TEST_CASE("A step between two backwards of a kept graph raises as plain does",
          "[backend][outside]") {
  for (const Saver& saver : kSavers) {
    CAPTURE(saver.name);
    const auto step = [&](bool checkpointed, bool optimizer_step) {
      return attempt(true, [&](const Tensor& x, Tensor& w) {
        torch::optim::AdamW optimizer(std::vector<Tensor>{w}, /*lr=*/0.1);
        const Tensor y = call(checkpointed, saver.run, x, w);
        y.sum().backward({}, /*retain_graph=*/true);
        if (optimizer_step) optimizer.step();
        y.sum().backward();
        return y;
      });
    };
    check_equal(step(false, false), step(true, false));
    const Outcome plain = step(false, true);
    const Outcome ours = step(true, true);
    CHECK_THAT(plain.error, ContainsSubstring(kInPlaceError));
    check_in_place_error(ours.error, "slot ");
    CHECK(same_bits(plain.x_grad, ours.x_grad));  // as after the first backward
    CHECK(same_bits(plain.w_grad, ours.w_grad));
  }
}

// [cpu]: remat notices a write through data() by comparing bytes, which it does in CPU memory only.
TEST_CASE("A step of SGD, which writes through data(), raises or is as plain",
          "[backend][outside][cpu]") {
  // No version counts this write, so plain code does not raise: it uses the new weight where the
  // weight itself was saved, and the old one where a saved tensor was computed from it.
  for (const Saver& saver : kSavers) {
    CAPTURE(saver.name);
    if (saver.has_region) continue;
    const auto step = [&](bool checkpointed) {
      return attempt(true, [&](const Tensor& x, Tensor& w) {
        w.mutable_grad() = torch::ones_like(w);
        const Tensor y = call(checkpointed, saver.run, x, w);
        torch::optim::SGD(std::vector<Tensor>{w}, /*lr=*/0.1).step();
        y.sum().backward();
        return y;
      });
    };
    const Outcome ours = step(true);
    if (ours.error.empty()) {
      check_equal(step(false), ours);
    } else {
      CHECK_THAT(ours.error, ContainsSubstring(kInPlaceError) &&
                                 ContainsSubstring("region 'outside', slot ") &&
                                 ContainsSubstring("without a new version, through data()"));
    }
  }
}

TEST_CASE("A step after the last backward is no concern of the graph", "[backend][outside]") {
  const auto train = [](bool checkpointed) {
    return attempt(true, [&](const Tensor& x, Tensor& w) {
      torch::optim::SGD optimizer(std::vector<Tensor>{w}, /*lr=*/0.1);
      Tensor y;
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        y = call(checkpointed, kSavers[3].run, x, w);
        y.sum().backward();
        optimizer.step();
      }
      return y;
    });
  };
  check_equal(train(false), train(true));
}

TEST_CASE("A tensor argument written between forward and backward raises with its position",
          "[backend][outside]") {
  // An error is raised even if plain code saves nothing of the tensor (x + w), since the replay
  // would start from another value.
  for (const bool saved : {false, true}) {
    CAPTURE(saved);
    const Outcome ours = attempt(true, [&](const Tensor& x, Tensor& w) {
      const auto fn = [saved](const Tensor& a, const Tensor& b) {
        return saved ? a * b : (a + b).sin();
      };
      const Tensor y = checkpoint(named_block())(fn)(x, w);
      write(kWriters[0], w);
      y.sum().backward();
      return y;
    });
    check_in_place_error(ours.error, "tensor argument 1 (float32 [4, 4] on cpu)");
  }
}

TEST_CASE("An argument that is no leaf raises like a leaf, also where no op is seen",
          "[backend][outside]") {
  // Nothing of the argument is saved, so without the check the replay would silently start from
  // another value.
  const bool intercept = GENERATE(true, false);
  CAPTURE(intercept);
  const Outcome ours = attempt(true, [&](const Tensor& x, Tensor& w) {
    remat::CheckpointOptions options = named_block();
    options.intercept = intercept;
    Tensor b = w * 2;
    const auto fn = [](const Tensor& s, const Tensor& t) { return (s + t).sin(); };
    const Tensor y = checkpoint(options)(fn)(x, b);
    write(kWriters[0], b);
    y.sum().backward();
    return y;
  });
  check_in_place_error(ours.error, "tensor argument 1 (float32 [4, 4] on cpu)");
}

// [cpu]: remat notices a write through data() by comparing bytes, which it does in CPU memory only.
TEST_CASE("A weight written through data() raises also where no op is seen",
          "[backend][outside][cpu]") {
  remat::CheckpointOptions options = named_block();
  options.intercept = false;
  const Outcome ours = attempt(true, [&](const Tensor& x, Tensor& w) {
    const Tensor y = checkpoint(options)([w](const Tensor& t) { return (t * w).sin(); })(x);
    w.data().mul_(2);
    y.sum().backward();
    return y;
  });
  CHECK_THAT(ours.error, ContainsSubstring(kInPlaceError) &&
                             ContainsSubstring("region 'outside', slot ") &&
                             ContainsSubstring("without a new version, through data()"));
}

TEST_CASE("An argument written inside is written once; without interception it raises",
          "[backend][outside]") {
  struct Body {
    const char* name;
    bool saves;
    std::function<Tensor(Tensor x)> run;
  };
  const std::vector<Body> bodies = {
      {"mul_ then sin", true, [](Tensor x) { return x.mul_(2).sin(); }},
      {"exp then add_", true,
       [](Tensor x) {
         const Tensor y = x.exp();
         x.add_(1);
         return y;
       }},
      {"through a view", true,
       [](Tensor x) {
         x[0].zero_();
         return x.cos();
       }},
      {"detached", true,
       [](Tensor x) {
         x.detach().add_(1);
         return x.sin();
       }},
      {"nothing saved", false, [](Tensor x) { return x.add_(1); }},
  };
  for (const Body& body : bodies) {
    CAPTURE(body.name);
    Tensor argument;
    const auto step = [&](bool checkpointed, bool intercept = true) {
      return attempt(false, [&](const Tensor& leaf, Tensor& /*w*/) {
        argument = leaf * 1;
        remat::CheckpointOptions options = named_block();
        options.intercept = intercept;
        const Tensor y =
            checkpointed ? checkpoint(options)(body.run)(argument) : body.run(argument);
        y.sum().backward();
        return y;
      });
    };
    const Outcome plain = step(false);
    const Tensor plain_argument = argument;
    check_equal(plain, step(true));
    CHECK(same_bits(plain_argument, argument));
    if (!body.saves) continue;
    CHECK_THAT(
        step(true, /*intercept=*/false).error,
        ContainsSubstring(remat::on_default_device(
            "[checkpoint] region 'outside', tensor argument 0 (float32 [4, 4] on cpu): expected an "
            "argument that the region only reads, got one that it wrote in place (it is at "
            "version ")) &&
            ContainsSubstring("Write to a clone, or write before the region."));
  }
}

TEST_CASE("An output written in place after the region is as plain, or both raise",
          "[backend][outside]") {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> bodies = {
      {"saves its input", [](const Tensor& x) { return x.sin(); }},
      {"saves its result", [](const Tensor& x) { return x.exp(); }},
      {"saves both", [](const Tensor& x) { return x.sin().tanh(); }},
      {"returns its input", [](const Tensor& x) { return x; }},
      {"returns a view of its input", [](const Tensor& x) { return x.t(); }},
      {"returns a view of what it saved", [](const Tensor& x) { return x.exp().t(); }},
      {"returns a view", [](const Tensor& x) { return x.sin().view({16}); }},
  };
  const std::vector<std::pair<const char*, std::function<void(Tensor&)>>> writes = {
      {"mul_(2)", [](Tensor& y) { y.mul_(2); }},
      {"add_(1)", [](Tensor& y) { y.add_(1); }},
      {"mul_(y)", [](Tensor& y) { y.mul_(y.detach().clone()); }},
      {"zero_", [](Tensor& y) { y.zero_(); }},
      {"of a row", [](Tensor& y) { y[0].mul_(2); }},
      {"detached", [](Tensor& y) { y.detach().add_(1); }},
  };
  for (const auto& [body_name, body] : bodies) {
    for (const auto& [write_name, writer] : writes) {
      CAPTURE(body_name, write_name);
      const auto step = [&, &body = body, &writer = writer](bool checkpointed) {
        return attempt(false, [&](const Tensor& leaf, Tensor& /*w*/) {
          const Tensor x = leaf * 1;
          Tensor y = checkpointed ? checkpoint(named_block())(body)(x) : body(x);
          writer(y);
          (y * y).sum().backward();
          return y;
        });
      };
      const Outcome plain = step(false);
      const Outcome ours = step(true);
      if (plain.error.empty()) {
        check_equal(plain, ours);
      } else {
        CHECK_THAT(plain.error, ContainsSubstring(kInPlaceError));
        check_in_place_error(ours.error, "slot ");
      }
    }
  }
}

TEST_CASE("A tensor lent by std::ref may be neither written nor assigned to",
          "[backend][outside]") {
  const auto step = [](const std::function<void(Tensor & w)>& between) {
    return attempt(true, [&](const Tensor& x, Tensor& w) {
      const auto fn = [](const Tensor& a, const Tensor& b) { return (a + b).sin() * b; };
      const Tensor y = checkpoint(named_block())(fn)(x, std::ref(w));
      between(w);
      y.sum().backward();
      return y;
    });
  };
  CHECK(step([](Tensor& /*w*/) {}).error.empty());
  const std::string written = step([](Tensor& w) { write(kWriters[0], w); }).error;
  CHECK_THAT(written, ContainsSubstring(kInPlaceError) && ContainsSubstring("region 'outside'") &&
                          ContainsSubstring("tensor passed by std::ref") &&
                          ContainsSubstring("is at version 1; expected version 0 instead") &&
                          ContainsSubstring("or pass a clone by value."));
  const std::string rebound = step([](Tensor& w) { w = w.detach() * 2; }).error;
  CHECK_THAT(rebound,
             ContainsSubstring("region 'outside'") &&
                 ContainsSubstring(
                     "tensor passed by std::ref: expected the tensor that the forward read, got "
                     "another one assigned to the variable since. Pass it by value, or do not "
                     "assign to it before backward."));
}

/// Frees a weight and gathers it again outside any op, as a sharded module does.
class Shard {
 public:
  explicit Shard(const Tensor& weight)
      : weight_(weight.detach()), bytes_(weight.detach().clone()) {}

  void free() { resize(0); }

  void gather() {
    ++gathered;
    resize(bytes_.nbytes());
    std::memcpy(weight_.mutable_data_ptr(), bytes_.const_data_ptr(), bytes_.nbytes());
  }

  int gathered = 0;

 private:
  void resize(size_t size_bytes) {
    at::native::resize_bytes_cpu(weight_.storage().unsafeGetStorageImpl(), size_bytes);
  }

  Tensor weight_;
  Tensor bytes_;
};

// [cpu]: resizes the weight's memory as memory of the CPU.
TEST_CASE("A weight that is gathered may be freed in a region, and is gathered for its replay",
          "[backend][outside][cpu]") {
  const auto step = [](bool noted, const auto& wrap) {
    return attempt(true, [&](const Tensor& x, Tensor& w) {
      const auto shard = std::make_shared<Shard>(w);
      if (noted) remat::note_gathered(w, at::zeros({1}), [shard] { shard->gather(); });
      const Tensor y = wrap([&w, shard, noted](const Tensor& a) {
        Tensor result = a.mm(w.t()).sin().exp();
        if (!remat::is_recomputing()) shard->free();  // as FSDP's hooks do
        return result;
      })(x);
      if (noted) CHECK(w.storage().nbytes() == 0);
      if (!noted) shard->gather();
      y.sum().backward();
      CHECK(shard->gathered == 1);  // gathered before the backward, or by the replay
      return y;
    });
  };
  const Outcome plain = step(false, [](const auto& fn) { return fn; });
  for (const remat::ReplayEngine engine :
       {remat::ReplayEngine::kFunction, remat::ReplayEngine::kTape, remat::ReplayEngine::kAuto}) {
    const auto wrap = checkpoint({.name = "outside", .replay = engine});
    check_equal(plain, step(true, wrap));
    CHECK_THAT(step(false, wrap).error, ContainsSubstring("to keep its size"));
  }
}

}  // namespace
