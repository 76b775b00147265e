// SPDX-License-Identifier: BSD-3-Clause

// The log gives its entries back, says what they are, and names the likely cause of a difference.
#include <remat/engine/op_log.h>

#include "support/catch.h"

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/made_call.h"

namespace remat {
namespace {

using AddArguments = std::function<void(OpWords&)>;

const OpInfo& logged_op(const char* name, const char* overload = "") {
  static std::vector<std::unique_ptr<const OpInfo>> all;
  all.push_back(std::make_unique<const OpInfo>(
      c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)));
  return *all.back();
}

void write_entry(OpWords& words, const OpInfo& op, const AddArguments& add) {
  words.begin(op);
  add(words);
  words.end();
}

std::vector<uint64_t> entry_of(const OpInfo& op, const AddArguments& add) {
  OpWords words;
  write_entry(words, op, add);
  return words.get().vec();
}

AddArguments tensor_argument(const at::Tensor& tensor, Origin origin = Origin::inside()) {
  return [=](OpWords& words) { words.add_tensor(tensor, origin); };
}

AddArguments value_argument(const c10::IValue& value) {
  return [=](OpWords& words) { words.add_value(value); };
}

std::string cause(const AddArguments& before, const AddArguments& now) {
  static const OpInfo& op = logged_op("aten::sin");
  return OpLog::likely_cause(entry_of(op, before), entry_of(op, now));
}

std::string cause_of_ops(const OpInfo& before, const OpInfo& now) {
  return OpLog::likely_cause(entry_of(before, [](OpWords&) {}), entry_of(now, [](OpWords&) {}));
}

}  // namespace

TEST_CASE("The log gives back one entry after the other, also very long ones", "[engine][log]") {
  const OpInfo& sin = logged_op("aten::sin");
  OpLog log;
  write_entry(log.writer(), sin, value_argument(1));
  const size_t second = log.end();
  write_entry(log.writer(), sin, value_argument(std::vector<int64_t>(70000, 5)));
  const size_t third = log.end();
  write_entry(log.writer(), sin, value_argument(2));
  log.finish();
  CHECK(log.at(0).size() == second);
  CHECK(log.at(second).size() == third - second);
  CHECK(third - second > 0xFFFF);
  CHECK(log.at(third) == entry_of(sin, value_argument(2)));
  CHECK(log.at(log.end()).empty());
  CHECK_FALSE(log.broken_off());
  log.drop();
  CHECK(log.at(0).empty());
  CHECK(log.broken_off());
}

TEST_CASE("Entries read as calls", "[engine][log]") {
  const at::Tensor tensor = at::ones({2, 3});
  const auto text = [](const AddArguments& add) {
    static const OpInfo& mul = logged_op("aten::mul", "Tensor");
    return OpLog::describe(entry_of(mul, add));
  };
  CHECK(text(tensor_argument(tensor)) == "aten::mul.Tensor(float32 [2, 3] on cpu)");
  CHECK(text(tensor_argument(tensor.t(), Origin::outside(4))) ==
        "aten::mul.Tensor(float32 [3, 2] strided on cpu from outside #4)");
  CHECK(text(tensor_argument(tensor[1], Origin::made(3, 0))) ==
        "aten::mul.Tensor(float32 [3] at element 3 on cpu of op 3)");
  CHECK(text(tensor_argument(at::ones({1}).requires_grad_(), Origin::product(0))) ==
        "aten::mul.Tensor(float32 [1] on cpu requires grad from a SAVE call)");
  CHECK(text(tensor_argument(at::ones({1}), Origin::unknown())) ==
        "aten::mul.Tensor(float32 [1] on cpu from elsewhere)");
  CHECK(text([](OpWords& words) {
          words.add_draw(5);
          words.add_value(c10::IValue());
          words.add_value(-2);
          words.add_value(0.5);
          words.add_value(true);
          words.add_value("mode");
          words.add_value(std::vector<int64_t>{1, -1});
          words.add_value(at::Device(at::kCPU));
        }) == "aten::mul.Tensor(None, -2, 0.5, true, 'mode', [1, -1], cpu)");
  CHECK(OpLog::describe({}) == "the end of the function");
}

TEST_CASE("A named call is known by its words", "[engine][log]") {
  OpWords words;
  words.begin_call(77);
  words.add_tensor(at::ones({2}), Origin::inside());
  words.end();
  CHECK(OpLog::is_call(words.get()));
  CHECK(OpLog::describe(words.get()) == "(float32 [2] on cpu)");
  CHECK_FALSE(OpLog::is_call(entry_of(logged_op("aten::sin"), value_argument(1))));
  CHECK_FALSE(OpLog::is_call({}));
}

TEST_CASE("The likely cause of other tensors is what differs in them", "[engine][log]") {
  const at::Tensor tensor = at::ones({4, 4});
  const AddArguments logged = tensor_argument(tensor);
  const auto now = [&](const at::Tensor& other, Origin origin = Origin::inside()) {
    return cause(logged, tensor_argument(other, origin));
  };
  CHECK_THAT(now(tensor.to(at::kDouble)), ContainsSubstring("A dtype differs"));
  CHECK_THAT(now(tensor.to(at::kMeta)), ContainsSubstring("A device differs"));
  CHECK_THAT(now(tensor.t()), ContainsSubstring("another part of a tensor, or in another order"));
  CHECK_THAT(now(at::ones({4, 5})), ContainsSubstring("A shape differs"));
  CHECK_THAT(now(tensor.clone().requires_grad_()), ContainsSubstring("requires_grad differs"));
  CHECK_THAT(now(tensor, Origin::made(1, 0)),
             ContainsSubstring("another tensor that the function makes"));
  CHECK_THAT(now(tensor, Origin::unknown()),
             ContainsSubstring("another tensor than the forward did"));
  CHECK_THAT(now(tensor, Origin::cast_of(Origin::outside(0), 0)),
             ContainsSubstring("a cast of another parameter"));
}

TEST_CASE("The likely cause of other values is their kind", "[engine][log]") {
  const auto differs = [](const c10::IValue& before, const c10::IValue& now) {
    return cause(value_argument(before), value_argument(now));
  };
  CHECK_THAT(differs(true, false), ContainsSubstring("A flag differs"));
  CHECK_THAT(differs(1, 2), ContainsSubstring("A number differs"));
  CHECK_THAT(differs(c10::IValue(), 2), ContainsSubstring("An optional argument differs"));
  CHECK_THAT(differs("a", "b"), ContainsSubstring("A text differs"));
  CHECK_THAT(differs(std::vector<int64_t>{1}, std::vector<int64_t>{2}),
             ContainsSubstring("A size differs"));
  CHECK_THAT(
      cause([](OpWords& words) { words.add_draw(1); }, [](OpWords& words) { words.add_draw(2); }),
      ContainsSubstring("other random numbers"));
  CHECK_THAT(cause([](OpWords& words) { words.add_settings(1); },
                   [](OpWords& words) { words.add_settings(2); }),
             ContainsSubstring("another setting"));
}

TEST_CASE("The likely cause of other ops is a branch, a cast or training", "[engine][log]") {
  const OpInfo& sin = logged_op("aten::sin");
  const OpInfo& exp = logged_op("aten::exp");
  CHECK(cause_of_ops(sin, exp) == "The function branches on state or on data that has changed.");
  CHECK(cause_of_ops(sin, logged_op("aten::_to_copy")) == "Autocast or a cast differs.");
  CHECK_THAT(cause_of_ops(logged_op("aten::native_dropout"), sin),
             ContainsSubstring("A training flag or a probability differs"));
  const std::vector<uint64_t> entry = entry_of(sin, value_argument(1));
  CHECK_THAT(OpLog::likely_cause({}, entry), ContainsSubstring("an op more"));
  CHECK_THAT(OpLog::likely_cause(entry, {}), ContainsSubstring("fewer ops"));
}

}  // namespace remat
