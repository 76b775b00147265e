// SPDX-License-Identifier: BSD-3-Clause

// The first op in which a replay differs from its forward, and why.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <remat/recording/recording_diff.h>
#include <remat/recording/replay_links.h>

#include "recording/diff_programs.h"
#include "support/catch.h"

using remat::DifferenceCause;
using remat::RecordedLayout;
using remat::RecordedTensor;
using remat::Recording;
using remat::RecordingDifference;
using remat::test::RecordedProgram;

namespace {

/// Arguments of a region's body, in its forward or replay. `x` and `w` are the same both times.
struct Region {
  RecordedProgram& program;
  RecordedTensor x;
  RecordedTensor w;

  RecordedTensor op(const std::string& name, const RecordedProgram::Tensors& arguments,
                    const RecordedProgram::Values& values = {}) const {
    return program.op(name, arguments, values);
  }
};
using Body = std::function<void(const Region&)>;

/// A region, and its replay in backward.
Recording region_and_replay(const Body& forward, const Body& again, bool threw, bool in_op = true) {
  RecordedProgram program;
  const RecordedTensor x = program.tensor({4, 4}, "float32", true);
  const RecordedTensor w = program.tensor({4, 4}, "float32", true);
  program.begin_region(1);
  forward({program, x, w});
  program.end_region();
  program.op("aten::sum", {x});
  program.begin_backward();
  program.begin_replay(1);
  again({program, x, w});
  program.end_replay(threw, in_op);
  return program.recording;
}

/// Puts two ops before, so that the op that differs is number 2.
Body after_two_ops(const Body& rest) {
  return [rest](const Region& region) {
    const RecordedTensor y = region.op("aten::sin", {region.x});
    region.op("aten::mul.Tensor", {y, region.w});
    rest(region);
  };
}

struct Divergence {
  DifferenceCause cause;
  Body forward;
  Body again;
  std::string first;   // part of the first op's text
  std::string second;  // part of the second op's text
};

RecordedTensor with(const Region& region, RecordedTensor tensor,
                    const std::function<void(RecordedLayout&)>& change, int64_t offset = 0) {
  RecordedLayout layout = region.program.layout_of(tensor);
  change(layout);
  return region.program.viewed(tensor, layout, offset);
}

Body op_of(const std::string& name,
           std::function<RecordedProgram::Values(RecordedProgram&)> values) {
  return [name, values = std::move(values)](const Region& region) {
    region.op(name, {region.x}, values(region.program));
  };
}

std::vector<Divergence> other_ops() {
  const Body sin = [](const Region& region) { region.op("aten::sin", {region.x}); };
  const Body cos = [](const Region& region) { region.op("aten::cos", {region.x}); };
  return {
      {DifferenceCause::kBranch, sin, cos,
       "aten::sin(float32 [4, 4] on cpu requires grad from outside #0)",
       "aten::cos(float32 [4, 4] on cpu requires grad from outside #0)"},
      {DifferenceCause::kTraining,
       [](const Region& region) { region.op("aten::native_dropout", {region.x}); }, cos,
       "aten::native_dropout(", "aten::cos("},
      {DifferenceCause::kCast, sin,
       [](const Region& region) { region.op("aten::_to_copy", {region.x}); }, "aten::sin(",
       "aten::_to_copy("},
      {DifferenceCause::kMissingOp,
       [](const Region& region) {
         region.op("aten::neg", {region.x});
         region.op("aten::exp", {region.x});
       },
       [](const Region& region) { region.op("aten::exp", {region.x}); }, "aten::neg(",
       "aten::exp("},
      {DifferenceCause::kExtraOp, [](const Region&) {}, sin, "the end", "aten::sin("},
      {DifferenceCause::kOrder,
       [](const Region& region) {
         region.op("aten::sin", {region.x});
         region.op("aten::cos", {region.x});
       },
       [](const Region& region) {
         region.op("aten::cos", {region.x});
         region.op("aten::sin", {region.x});
       },
       "aten::sin(", "aten::cos("},
  };
}

/// Returns the difference for one op on a tensor that `change` has changed in the replay.
Divergence on_tensor(DifferenceCause cause,
                     const std::function<void(RecordedLayout&, RecordedProgram&)>& change,
                     const std::string& second, int64_t offset = 0) {
  const Body forward = [](const Region& region) { region.op("aten::exp", {region.x}); };
  const Body again = [=](const Region& region) {
    region.op("aten::exp",
              {with(
                  region, region.x, [&](RecordedLayout& layout) { change(layout, region.program); },
                  offset)});
  };
  return {cause, forward, again, "aten::exp(float32 [4, 4] on cpu requires grad from outside #0)",
          second};
}

std::vector<Divergence> other_tensors() {
  const Body reads_w = [](const Region& region) { region.op("aten::exp", {region.w}); };
  const auto reads_made = [](bool first) {
    return [first](const Region& region) {
      const RecordedTensor a = region.op("aten::neg", {region.x});
      const RecordedTensor b = region.op("aten::neg", {region.x});
      region.op("aten::exp", {first ? a : b});
    };
  };
  return {
      on_tensor(
          DifferenceCause::kDtype,
          [](RecordedLayout& layout, RecordedProgram& program) {
            layout.dtype = program.text("bfloat16");
          },
          "aten::exp(bfloat16 [4, 4]"),
      on_tensor(
          DifferenceCause::kDevice,
          [](RecordedLayout& layout, RecordedProgram& program) {
            layout.device = program.text("cuda:0");
          },
          "on cuda:0"),
      on_tensor(
          DifferenceCause::kShape,
          [](RecordedLayout& layout, RecordedProgram&) {
            layout.sizes = {8, 4};
          },
          "float32 [8, 4]"),
      on_tensor(
          DifferenceCause::kLayout,
          [](RecordedLayout& layout, RecordedProgram&) {
            layout.strides = {1, 4};
          },
          "float32 [4, 4] strided on cpu"),
      on_tensor(
          DifferenceCause::kLayout, [](RecordedLayout&, RecordedProgram&) {},
          "float32 [4, 4] at element 8 on cpu", 8),
      on_tensor(
          DifferenceCause::kRequiresGrad,
          [](RecordedLayout& layout, RecordedProgram&) { layout.requires_grad = false; },
          "aten::exp(float32 [4, 4] on cpu from outside #0)"),
      {DifferenceCause::kOutsideTensor, reads_w,
       [](const Region& region) { region.op("aten::exp", {region.x}); }, "from outside #1",
       "from outside #0"},
      {DifferenceCause::kOutsideTensor, reads_w,
       [](const Region& region) {
         region.op("aten::exp", {region.program.tensor({4, 4}, "float32", true)});
       },
       "from outside #1", "from elsewhere"},
      {DifferenceCause::kInsideTensor, reads_made(true), reads_made(false), "of op 2", "of op 3"},
  };
}

std::vector<Divergence> other_values() {
  using Program = RecordedProgram;
  const auto pair = [](DifferenceCause cause, const std::string& name,
                       const std::function<Program::Values(Program&)>& first,
                       const std::function<Program::Values(Program&)>& second,
                       const std::string& in_first, const std::string& in_second) {
    return Divergence{cause, op_of(name, first), op_of(name, second), in_first, in_second};
  };
  return {
      pair(
          DifferenceCause::kNumber, "aten::leaky_relu",
          [](Program& p) { return Program::Values{p.number(0.25)}; },
          [](Program& p) { return Program::Values{p.number(0.5)}; }, ", 0.25)", ", 0.5)"),
      pair(
          DifferenceCause::kNumber, "aten::roll",
          [](Program& p) { return Program::Values{p.number(int64_t{-1})}; },
          [](Program& p) { return Program::Values{p.number(int64_t{2})}; }, ", -1)", ", 2)"),
      pair(
          DifferenceCause::kShape, "aten::zeros",
          [](Program& p) {
            return Program::Values{p.list(2), p.number(int64_t{2}), p.number(int64_t{3})};
          },
          [](Program& p) {
            return Program::Values{p.list(2), p.number(int64_t{2}), p.number(int64_t{4})};
          },
          ", [2, 3])", ", [2, 4])"),
      pair(
          DifferenceCause::kFlag, "aten::native_batch_norm",
          [](Program& p) {
            return Program::Values{p.flag(true), p.number(0.1)};
          },
          [](Program& p) {
            return Program::Values{p.flag(false), p.number(0.1)};
          },
          "true, 0.1)", "false, 0.1)"),
      pair(
          DifferenceCause::kText, "aten::gelu",
          [](Program& p) { return Program::Values{p.mode("none")}; },
          [](Program& p) { return Program::Values{p.mode("tanh")}; }, "'none')", "'tanh')"),
      pair(
          DifferenceCause::kOptional, "aten::clamp",
          [](Program& p) {
            return Program::Values{p.number(int64_t{0}), p.none()};
          },
          [](Program& p) {
            return Program::Values{p.number(int64_t{0}), p.number(int64_t{1})};
          },
          "0, none)", "0, 1)"),
      pair(
          DifferenceCause::kOptional, "aten::sum.dim_IntList",
          [](Program& p) {
            return Program::Values{p.list(1), p.number(int64_t{0}), p.flag(false)};
          },
          [](Program& p) {
            return Program::Values{p.list(2), p.number(int64_t{0}), p.number(int64_t{1}),
                                   p.flag(false)};
          },
          "[0], false)", "[0, 1], false)"),
  };
}

std::string texts(const RecordingDifference& found) {
  return remat::cause_text(found.cause) + ("\n" + found.first_words) + "\n" + found.second_words;
}

void check(const Divergence& divergence, bool threw) {
  const Recording recording =
      region_and_replay(after_two_ops(divergence.forward), after_two_ops(divergence.again), threw);
  const std::vector<RecordingDifference> all = remat::replay_differences(recording);
  REQUIRE(all.size() == 1);
  const RecordingDifference& found = all[0];
  INFO(texts(found));
  CHECK(found.cause == divergence.cause);
  CHECK_THAT(found.first_words, ContainsSubstring(divergence.first));
  CHECK_THAT(found.second_words, ContainsSubstring(divergence.second));
  CHECK(found.region == "region 'block'");
  CHECK(found.replay == 0);
  const size_t number = divergence.cause == DifferenceCause::kInsideTensor ? 4 : 2;
  CHECK(found.number == number);
  const std::string line = std::to_string(11 + number) + " forward";
  CHECK(found.first_line == (found.first_words == "the end" ? "" : "model.py:" + line));
  CHECK(found.second_line == "model.py:1" + line);
  REQUIRE(found.before.size() == std::min<size_t>(number, 3));
  if (number == 2) {
    CHECK(found.before[0] == "aten::sin(float32 [4, 4] on cpu requires grad from outside #0)");
    CHECK(found.before[1] ==
          "aten::mul.Tensor(float32 [4, 4] on cpu of op 0, float32 [4, 4] on cpu "
          "requires grad from outside #1)");
  }
}

TEST_CASE("A replay that does something else is told by its op and the cause", "[recording]") {
  std::set<DifferenceCause> seen;
  for (const auto& divergences : {other_ops(), other_tensors(), other_values()}) {
    for (const Divergence& divergence : divergences) {
      seen.insert(divergence.cause);
      const bool needs_more = divergence.cause == DifferenceCause::kOrder;
      check(divergence, !needs_more);
    }
  }
  CHECK(seen.size() == remat::kDifferenceCauses - 1);  // kUnrecorded has a test of its own
}

TEST_CASE("A replay that does the same has no difference", "[recording]") {
  const Body body = after_two_ops([](const Region& region) {
    region.op("aten::view", {region.x});
    region.op("aten::exp", {region.op("aten::neg", {region.x})});
  });
  CHECK(remat::replay_differences(region_and_replay(body, body, false)).empty());
  // The replay stops early, and the view that it leaves out computes nothing.
  const Body shorter = after_two_ops([](const Region& region) {
    region.op("aten::t", {region.x});
    region.op("aten::neg", {region.x});
  });
  CHECK(remat::replay_differences(region_and_replay(body, shorter, false)).empty());
  CHECK(remat::replay_differences(region_and_replay([](const Region&) {}, body, false)).empty());
}

TEST_CASE("A replay that threw with fewer ops has left them out", "[recording]") {
  const Body longer =
      after_two_ops([](const Region& region) { region.op("aten::exp", {region.x}); });
  const Recording recording =
      region_and_replay(longer, after_two_ops([](const Region&) {}), true, false);
  const auto all = remat::replay_differences(recording);
  REQUIRE(all.size() == 1);
  CHECK(all[0].cause == DifferenceCause::kMissingOp);
  CHECK(all[0].number == 2);
  CHECK(all[0].second_words == "the end");
  CHECK(all[0].second == RecordingDifference::kNone);
  CHECK(all[0].first_line == "model.py:13 forward");
}

TEST_CASE("Where a replay threw and nothing differs a number may, or what is not recorded",
          "[recording]") {
  const auto cause = [](const Body& body, bool in_op) {
    const auto all = remat::replay_differences(region_and_replay(body, body, true, in_op));
    REQUIRE(all.size() == 1);
    return all[0].cause;
  };
  const Body plain = after_two_ops([](const Region&) {});
  CHECK(cause(plain, true) == DifferenceCause::kUnrecorded);
  CHECK(cause(plain, false) == DifferenceCause::kUnrecorded);
  // The replay throws before its first op.
  const auto none = remat::replay_differences(region_and_replay(
      plain, [](const Region&) {}, true, false));
  REQUIRE(none.size() == 1);
  CHECK(none[0].cause == DifferenceCause::kUnrecorded);
  CHECK(none[0].number == 0);
  CHECK(cause(after_two_ops([](const Region& region) {
                region.op("aten::mul.Tensor", {region.x, region.program.tensor({}, "float64")});
              }),
              true) == DifferenceCause::kNumber);
}

TEST_CASE("A replay that is not checked may read another tensor of the forward", "[recording]") {
  const auto body = [](bool swapped) {
    return [swapped](const Region& region) {
      region.op("aten::sin", {swapped ? region.w : region.x});
      region.op("aten::cos", {swapped ? region.x : region.w});
    };
  };
  const auto all = remat::replay_differences(region_and_replay(body(false), body(true), false));
  REQUIRE(all.size() == 1);
  CHECK(all[0].cause == DifferenceCause::kOutsideTensor);
  CHECK(all[0].number == 0);
}

TEST_CASE("What SAVE calls run and casts of weights are not compared", "[recording]") {
  const auto body = [](bool again) {
    return [again](const Region& region) {
      region.op("aten::neg", {region.x});
      RecordedTensor saved = region.program.tensor({4, 4});
      RecordedTensor cast = region.program.tensor({4, 4}, "bfloat16");
      if (!again) {
        region.program.add("aten::mm", {region.x, region.w}, {}, {saved}).call =
            region.program.text("gate");
        region.program.add("aten::_to_copy", {region.w}, {}, {cast});
      }
      const RecordedTensor y = region.op("aten::sin", {region.x});
      region.op("aten::add", {y, saved});
      region.op("aten::mm", {cast, cast});
    };
  };
  CHECK(remat::replay_differences(region_and_replay(body(false), body(true), false)).empty());
}

TEST_CASE("An in-place op has made what it wrote, a view has not", "[recording]") {
  const auto body = [](bool written) {
    return [written](const Region& region) {
      RecordedTensor y = region.op("aten::sin", {region.x});
      region.program.add(written ? "aten::relu_" : "aten::alias", {y}, {}, {y});
      if (!written) region.program.add("aten::relu", {y}, {}, {region.program.tensor()});
      region.op("aten::exp", {y});
    };
  };
  const auto words = [&](bool written) {
    Recording recording = region_and_replay(body(written), body(written), true);
    return remat::replay_differences(recording).at(0).second_words;
  };
  CHECK(words(true) == "aten::exp(float32 [4, 4] on cpu of op 1)");
  CHECK(words(false) == "aten::exp(float32 [4, 4] on cpu of op 0)");
}

TEST_CASE("The ops of a function's replay stand beside those of its forward", "[recording]") {
  const Body body = after_two_ops([](const Region&) {});
  const auto replays = remat::function_replays(region_and_replay(body, body, false));
  REQUIRE(replays.size() == 1);
  CHECK(replays[0].region == 1);
  CHECK((replays[0].forward == std::vector<size_t>{0, 1}));
  CHECK((replays[0].again == std::vector<size_t>{3, 4}));
}

}  // namespace
