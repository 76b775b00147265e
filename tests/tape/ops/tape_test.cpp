// SPDX-License-Identifier: BSD-3-Clause

// A tape prints as the ops of its function, and knows its values, their layouts and its weights.
#include <remat/tape/tape.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "support/recorded_tape.h"
#include "support/same_bits.h"

namespace remat {
namespace {

std::vector<std::string> names_held(const RecordedTape& recorded) {
  std::vector<std::string> names;
  recorded.tape().visit_held([&](const KeptValue& held) { names.push_back(held.name); });
  return names;
}

}  // namespace

TEST_CASE("A tape reads as one op per line, then its slots", "[tape][ops]") {
  const RecordedTape sin_exp([](const at::Tensor& x) { return x.sin().exp(); });
  CHECK(sin_exp.tape().str() ==
        "0: %1 = aten::sin(%0)\n"
        "1: %2 = aten::exp(%1)\n"
        "slot 0 = %0\n"
        "slot 1 = %2\n");
}

TEST_CASE("Lists, undefined tensors and other arguments read as they were passed", "[tape][ops]") {
  const RecordedTape joined([](const at::Tensor& x) {
    const at::Tensor sum = x.sum();
    const at::Tensor sin = x.detach().sin();
    return at::cat({sin, x.detach().cos()}, 1).exp() * sum;
  });
  CHECK_THAT(joined.tape().str(), ContainsSubstring("= aten::cat([%2, %3], 1)\n"));
  const RecordedTape indexed([](const at::Tensor& x) {
    const at::Tensor index = x.detach().argmax(1);
    return x.detach().index({torch::indexing::Slice(), index}).exp() * x.sum();
  });
  CHECK_THAT(indexed.tape().str(), ContainsSubstring("aten::index.Tensor(%0, [undefined, %1])\n"));
}

TEST_CASE("A write gives its storage a new value", "[tape][ops]") {
  const RecordedTape written([](const at::Tensor& x) { return x.sin().mul_(x).exp(); });
  CHECK_THAT(written.tape().str(), ContainsSubstring("1: %2 = aten::mul_.Tensor(%1, %0)\n"
                                                     "2: %3 = aten::exp(%2)\n"));
  const TapeRecord& write = written.tape().records()[1];
  REQUIRE(written.tape().writes(write).size() == 1);
  CHECK(written.tape().writes(write)[0].before == 1);
  CHECK(written.tape().writes(write)[0].after == 2);
  CHECK(written.tape().outputs(write).empty());
  CHECK(written.tape().makes_any(write, [](uint32_t value) { return value == 2; }));
  CHECK_FALSE(written.tape().makes_any(write, [](uint32_t value) { return value == 1; }));
}

TEST_CASE("A value knows the op that makes it", "[tape][ops]") {
  const RecordedTape sin_exp([](const at::Tensor& x) { return x.sin().exp(); });
  CHECK(sin_exp.tape().maker(0).empty());
  CHECK(sin_exp.tape().maker(1) == "aten::sin");
  CHECK(sin_exp.tape().maker(2) == "aten::exp");
}

TEST_CASE("A tape lays a storage out as the forward saw it", "[tape][ops]") {
  const RecordedTape turned([](const at::Tensor& x) { return x.t().narrow(0, 2, 3).exp(); });
  const Tape& tape = turned.tape();
  const TapeRef ref = tape.refs(tape.records()[0])[0];
  const at::Tensor expected = turned.x().detach().t().narrow(0, 2, 3);
  CHECK(tape.has_layout(expected, ref.layout));
  CHECK_FALSE(tape.has_layout(expected.contiguous(), ref.layout));
  CHECK_FALSE(tape.has_layout(expected.to(at::kDouble), ref.layout));
  CHECK_FALSE(tape.has_layout(turned.x().detach().t().narrow(0, 3, 3), ref.layout));
  const at::Tensor got = tape.lay_out(turned.x().storage(), ref.layout);
  CHECK(same_bits(got, expected));
  CHECK(got.strides() == expected.strides());
  const at::Tensor shape = tape.without_data(ref.layout);
  CHECK(shape.sizes() == expected.sizes());
  CHECK(shape.strides() == expected.strides());
  CHECK(shape.storage().data() == nullptr);
}

TEST_CASE("A tape names the generators that its ops drew from, each once", "[tape][ops]") {
  const RecordedTape quiet([](const at::Tensor& x) { return x.exp(); });
  CHECK(quiet.tape().generators(0).empty());
  const RecordedTape draws(
      [](const at::Tensor& x) { return (x * at::rand_like(x)).exp() * at::rand_like(x); });
  const std::vector<at::Generator> generators = draws.tape().generators(0);
  REQUIRE(generators.size() == 1);
  CHECK(generators[0] == at::globalContext().defaultGenerator(at::Device(at::kCPU)));
}

TEST_CASE("A tape holds a weight itself, and a view of other memory whole", "[tape][ops]") {
  const at::Tensor weight = torch::ones({4, 8}).requires_grad_();
  const at::Tensor buffer = torch::rand({6, 8});
  const RecordedTape recorded(
      [&](const at::Tensor& x) { return (x.mul(weight) + buffer.narrow(0, 1, 4)).exp(); });
  const Tape& tape = recorded.tape();
  const OutsideLog& outside = recorded.region().outside();
  const size_t of_weight = outside.find(memory_of(weight)).number();
  const size_t of_buffer = outside.find(memory_of(buffer)).number();
  CHECK(tape.holds_itself(of_weight));
  CHECK(tape.unpack_outside(of_weight).is_same(weight));
  CHECK_FALSE(tape.holds_itself(of_buffer));
  const at::Tensor got = tape.unpack_outside(of_buffer);
  CHECK(got.nbytes() == buffer.nbytes());
  CHECK(same_bits(got.view(at::kFloat).view({6, 8}), buffer));
  CHECK_FALSE(tape.unpack_outside(100).defined());
}

TEST_CASE("A report of what a tape holds shows copies that no op has made", "[tape][ops]") {
  const at::Tensor factor = torch::rand({4, 2}).requires_grad_();
  // Autograd saves a dense copy of the written columns, which the tape cannot recompute.
  const RecordedTape recorded([&](const at::Tensor& x) {
    const at::Tensor y = x.exp();
    y.narrow(1, 0, 2).mul_(factor);
    return y;
  });
  const std::vector<std::string> names = names_held(recorded);
  REQUIRE(names.size() == 1);
  CHECK(names[0].starts_with("slot "));
}

TEST_CASE("A report of what a tape holds leaves out what others hold", "[tape][ops]") {
  const at::Tensor buffer = torch::rand({4, 8});
  const RecordedTape of_others([&](const at::Tensor& x) { return (x + buffer).exp(); });
  CHECK(names_held(of_others).empty());
  at::Tensor alone = torch::rand({4, 8});
  const RecordedTape of_its_own([&](const at::Tensor& x) { return (x + alone).exp(); });
  alone.reset();
  CHECK(names_held(of_its_own) == std::vector<std::string>{"outside #1"});
}

TEST_CASE("A tape of more ops takes more memory", "[tape][ops]") {
  const auto bytes = [](int count) {
    return RecordedTape([=](at::Tensor x) {
             for (int i = 0; i < count; ++i) x = x.sin();
             return x;
           })
        .tape()
        .size_bytes();
  };
  CHECK(bytes(40) >= bytes(4) + 36 * sizeof(TapeRecord));
}

}  // namespace remat
