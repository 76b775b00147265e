// SPDX-License-Identifier: BSD-3-Clause

// The words of an op differ where two calls would compute something else, and nowhere else.
#include <remat/engine/op_log.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/made_call.h"

namespace remat {
namespace {

using WordList = std::vector<uint64_t>;

const OpInfo& mul_op() {
  static const OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul", "Tensor"));
  return info;
}

/// The words of aten::mul with the arguments that `add` adds.
template <class Add>
WordList words_with(Add&& add) {
  OpWords words;
  words.begin(mul_op());
  add(words);
  words.end();
  return words.get().vec();
}

WordList words_of_tensor(const at::Tensor& tensor, Origin origin = Origin::inside(),
                         int64_t moved = 0) {
  return words_with([&](OpWords& words) { words.add_tensor(tensor, origin, moved); });
}

WordList words_of_value(const c10::IValue& value) {
  return words_with([&](OpWords& words) { words.add_value(value); });
}

bool equal_words(const WordList& logged, const WordList& replayed) {
  return OpWords::match(logged, replayed, /*draws=*/true, [](size_t) { return false; });
}

bool all_differ(const std::vector<WordList>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j) {
      if (equal_words(all[i], all[j]) != (i == j)) return false;
    }
  }
  return true;
}

at::Tensor number_like(double number) {
  at::Tensor tensor = at::scalar_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace

TEST_CASE("Tensors with other values have the same words", "[engine][log]") {
  CHECK(equal_words(words_of_tensor(at::zeros({2, 3})), words_of_tensor(at::ones({2, 3}))));
}

TEST_CASE("Each difference of a tensor is a difference of its words", "[engine][log]") {
  const at::Tensor square = at::ones({4, 4});
  const std::vector<WordList> all = {
      words_of_tensor(square),
      words_of_tensor(square.to(at::kDouble)),
      words_of_tensor(square.to(at::kMeta)),
      words_of_tensor(at::ones({4, 5})),
      words_of_tensor(at::ones({4})),
      words_of_tensor(at::ones({16})),
      words_of_tensor(square.t()),
      words_of_tensor(square.expand({2, 4, 4})),
      words_of_tensor(square.narrow(0, 0, 2)),
      words_of_tensor(square.narrow(0, 2, 2)),
      words_of_tensor(square._neg_view()),
      words_of_tensor(square.to(at::kComplexFloat)),
      words_of_tensor(square.to(at::kComplexFloat).conj()),
      words_of_tensor(square.clone().requires_grad_()),
      words_of_tensor(number_like(1)),
      words_of_tensor(number_like(2)),
      words_of_tensor(at::scalar_tensor(2)),
  };
  CHECK(all_differ(all));
}

TEST_CASE("Each origin of a tensor has words of its own", "[engine][log]") {
  const at::Tensor tensor = at::ones({2});
  CHECK(all_differ({
      words_of_tensor(tensor, Origin::inside()),
      words_of_tensor(tensor, Origin::in_call()),
      words_of_tensor(tensor, Origin::given()),
      words_of_tensor(tensor, Origin::outside(0)),
      words_of_tensor(tensor, Origin::outside(1)),
      words_of_tensor(tensor, Origin::product(1)),
      words_of_tensor(tensor, Origin::made(1, 0)),
      words_of_tensor(tensor, Origin::made(1, 1)),
      words_of_tensor(tensor, Origin::made(2, 0)),
      words_of_tensor(tensor, Origin::cast_of(Origin::outside(0), 0)),
      words_of_tensor(tensor, Origin::cast_of(Origin::outside(0), 1)),
  }));
}

TEST_CASE("A tensor without elements has the same words wherever it comes from", "[engine][log]") {
  const at::Tensor empty = at::ones({0, 3});
  CHECK(equal_words(words_of_tensor(empty, Origin::outside(0)),
                    words_of_tensor(empty, Origin::made(1, 0))));
  CHECK_FALSE(equal_words(words_of_tensor(empty), words_of_tensor(at::ones({3, 0}))));
}

TEST_CASE("Whether a tensor requires grad matters only where autograd sees the op",
          "[engine][log]") {
  const at::Tensor tensor = at::ones({2});
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  CHECK_FALSE(equal_words(words_of_tensor(tensor), words_of_tensor(leaf)));
  {
    const torch::NoGradGuard off;
    CHECK(equal_words(words_of_tensor(tensor), words_of_tensor(leaf)));
  }
  const at::AutoDispatchBelowAutograd below;
  CHECK(equal_words(words_of_tensor(tensor), words_of_tensor(leaf)));
}

TEST_CASE("A tensor that hooks moved has the words of its place in the forward", "[engine][log]") {
  const at::Tensor then = at::ones({6}).narrow(0, 2, 4);
  const at::Tensor now = at::ones({4});
  CHECK_FALSE(equal_words(words_of_tensor(then), words_of_tensor(now)));
  CHECK(equal_words(words_of_tensor(then), words_of_tensor(now, Origin::inside(), 8)));
  CHECK(layout_hash(then) == layout_hash(now, 8));
  CHECK(layout_hash(then) != layout_hash(now));
}

TEST_CASE("Each value of an argument has words of its own", "[engine][log]") {
  using c10::IValue;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<IValue> values = {IValue(),
                                      IValue(1),
                                      IValue(2),
                                      IValue(1.0),
                                      IValue(0.0),
                                      IValue(-0.0),
                                      IValue(nan),
                                      IValue(true),
                                      IValue(false),
                                      IValue("a"),
                                      IValue("a\0b"),
                                      IValue(std::string("a\0", 2)),
                                      IValue("eight ch"),
                                      IValue("eight chs"),
                                      IValue(at::Device(at::kCPU)),
                                      IValue(at::Device(at::kCUDA, 0)),
                                      IValue(at::Device(at::kCUDA, 1)),
                                      IValue(std::vector<int64_t>{}),
                                      IValue(std::vector<int64_t>{1}),
                                      IValue(std::vector<int64_t>{1, 0}),
                                      IValue(std::vector<double>{1}),
                                      IValue(c10::List<bool>({true})),
                                      IValue(c10::complex<double>(1, 0)),
                                      IValue(c10::complex<double>(0, 1)),
                                      IValue(c10::complex<double>(1, 2)),
                                      IValue(std::make_tuple(int64_t{1}, int64_t{2})),
                                      IValue(std::make_tuple(int64_t{1}, 2.0))};
  std::vector<WordList> all;
  for (const IValue& value : values) {
    if (value.isString() && value.toStringRef() == "a" && !all.empty() &&
        all.back() == words_of_value(value))
      continue;  // A literal ends at its first zero.
    all.push_back(words_of_value(value));
  }
  CHECK(all_differ(all));
}

TEST_CASE("A list of tensors says which of them are defined", "[engine][log]") {
  const auto list = [](std::vector<bool> defined) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const bool is : defined)
      tensors.push_back(is ? std::optional<at::Tensor>(at::ones({1})) : std::nullopt);
    return words_of_value(tensors);
  };
  CHECK(all_differ({list({}), list({true}), list({false}), list({true, false}), list({false, true}),
                    list(std::vector<bool>(70, true)), list(std::vector<bool>(70, false))}));
}

TEST_CASE("Positions of generators are compared only where the region draws", "[engine][log]") {
  const auto drawn_at = [](uint64_t position) {
    return words_with([&](OpWords& words) { words.add_draw(position); });
  };
  const auto never = [](size_t) { return false; };
  CHECK_FALSE(OpWords::match(drawn_at(3), drawn_at(4), /*draws=*/true, never));
  CHECK(OpWords::match(drawn_at(3), drawn_at(4), /*draws=*/false, never));
  CHECK_FALSE(OpWords::match(drawn_at(3), words_of_value(int64_t{3}), /*draws=*/false, never));
}

TEST_CASE("Settings that the function has changed and the class of a tensor are words",
          "[engine][log]") {
  const auto with = [](uint64_t settings, uint64_t tensor_class) {
    return words_with([&](OpWords& words) {
      words.add_settings(settings);
      if (tensor_class != 0) words.add_class(tensor_class);
    });
  };
  CHECK(all_differ({with(0, 0), with(1, 0), with(2, 0), with(0, 1), with(0, 2)}));
  CHECK(with(0, 0).size() == 1);
}

TEST_CASE("A tensor of unknown origin matches one from outside that it may be", "[engine][log]") {
  const at::Tensor tensor = at::ones({2});
  const auto two = [&](Origin first, Origin second) {
    return words_with([&](OpWords& words) {
      words.add_tensor(tensor, first);
      words.add_tensor(tensor, second);
    });
  };
  std::vector<size_t> asked;
  const auto yes = [&](size_t number) { return asked.push_back(number), true; };
  const auto no = [](size_t) { return false; };
  const WordList unknown = two(Origin::unknown(), Origin::unknown());
  CHECK(OpWords::match(two(Origin::outside(7), Origin::outside(4)), unknown, true, yes));
  CHECK(asked == std::vector<size_t>{7, 4});
  CHECK_FALSE(OpWords::match(two(Origin::outside(7), Origin::outside(4)), unknown, true, no));
  CHECK_FALSE(OpWords::match(two(Origin::outside(7), Origin::made(4, 0)), unknown, true, yes));
  CHECK_FALSE(OpWords::match(unknown, two(Origin::outside(7), Origin::outside(4)), true, yes));
}

TEST_CASE("A tensor of unknown origin must be like the logged one", "[engine][log]") {
  const auto yes = [](size_t) { return true; };
  const auto unknown = [](const at::Tensor& tensor) {
    return words_of_tensor(tensor, Origin::unknown());
  };
  const WordList logged = words_of_tensor(at::ones({2}), Origin::outside(0));
  CHECK(OpWords::match(logged, unknown(at::ones({2})), true, yes));
  CHECK_FALSE(OpWords::match(logged, unknown(at::ones({3})), true, yes));
  CHECK_FALSE(OpWords::match(logged, unknown(at::ones({2}, at::kDouble)), true, yes));
}

TEST_CASE("An op that was not closed leaves no words", "[engine][log]") {
  OpWords words;
  words.begin(mul_op());
  words.add_value(1);
  words.end();
  const size_t size = words.get().size();
  words.begin(mul_op());
  words.add_value(2);
  words.drop_open();
  CHECK(words.get().size() == size);
}

TEST_CASE("Views of strided tensors are not logged, and those of sparse tensors are",
          "[engine][log]") {
  const auto is_logged = [](const char* name, torch::jit::Stack arguments) {
    MadeCall call(name, "", std::move(arguments));
    return is_written_down(call.get());
  };
  CHECK_FALSE(is_logged("aten::t", {at::ones({2, 3})}));
  CHECK(is_logged("aten::sin", {at::ones({2, 3})}));
  CHECK(is_logged("aten::t", {at::eye(2).to_sparse()}));
}

}  // namespace remat
