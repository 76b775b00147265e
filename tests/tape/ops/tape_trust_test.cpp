// SPDX-License-Identifier: BSD-3-Clause

// Which regions' tapes are recorded and compared is learned once per name and function.
#include <remat/tape/tape_trust.h>

#include "support/catch.h"

#include <memory>
#include <string>

namespace remat {
namespace {

/// A body whose identity is a number.
class NumberedBody final : public RegionBody {
 public:
  explicit NumberedBody(size_t number) : number_(number) {}
  size_t identity() const override { return number_; }
  std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> /*inputs*/) const override {
    return nullptr;
  }

 private:
  size_t number_;
};

TapeTrust trust_of(const std::string& name, size_t number) {
  return TapeTrust::of(name, NumberedBody(number));
}

TrustedOps sequences(std::initializer_list<OpHashes> all) {
  TrustedOps::All list;
  for (const OpHashes& one : all) list.push_back(std::make_shared<const OpHashes>(one));
  return TrustedOps(std::make_shared<const TrustedOps::All>(std::move(list)));
}

bool follows(TrustedOps ops, const OpHashes& hashes) {
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (!ops.follow(i, hashes[i])) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("Ops are trusted while a known sequence begins with them", "[tape][ops]") {
  const TrustedOps known = sequences({{1, 2, 3}, {1, 5}});
  CHECK(follows(known, {1, 2, 3}));
  CHECK(follows(known, {1, 5}));
  CHECK(follows(known, {1}));
  CHECK_FALSE(follows(known, {1, 2, 3, 4}));
  CHECK_FALSE(follows(known, {1, 6}));
  CHECK_FALSE(follows(known, {2}));
}

TEST_CASE("No ops are trusted before a replay was right", "[tape][ops]") {
  CHECK(TrustedOps().empty());
  CHECK_FALSE(follows(TrustedOps(), {1}));
  CHECK(trust_of("tape_trust_test, new", 1).advice().trusted.empty());
}

TEST_CASE("A region without a tape is refused once, by name and function", "[tape][ops]") {
  const TapeTrust trust = trust_of("tape_trust_test, refused", 1);
  CHECK_FALSE(trust.advice().refused);
  CHECK(trust.refuse());
  CHECK_FALSE(trust.refuse());
  CHECK(trust_of("tape_trust_test, refused", 1).advice().refused);
  CHECK_FALSE(trust_of("tape_trust_test, refused", 2).advice().refused);
  CHECK_FALSE(trust_of("tape_trust_test, other", 1).advice().refused);
}

TEST_CASE("Trusted ops are listed once, and the oldest of many is forgotten", "[tape][ops]") {
  const TapeTrust trust = trust_of("tape_trust_test, trusted", 1);
  trust.trust({100});
  trust.trust({100});
  CHECK(trust.advice().trusted.all()->size() == 1);
  for (uint64_t i = 1; i < 16; ++i) trust.trust({100 + i});
  CHECK(trust.advice().trusted.all()->size() == 16);
  CHECK(follows(trust.advice().trusted, {100}));
  trust.trust({116});
  CHECK(trust.advice().trusted.all()->size() == 16);
  CHECK_FALSE(follows(trust.advice().trusted, {100}));
  CHECK(follows(trust.advice().trusted, {116}));
}

TEST_CASE("A running region keeps the advice that it began with", "[tape][ops]") {
  const TapeTrust trust = trust_of("tape_trust_test, running", 1);
  trust.trust({1});
  const TapeTrust::Advice before = trust.advice();
  trust.trust({2});
  CHECK_FALSE(follows(before.trusted, {2}));
  CHECK(follows(trust.advice().trusted, {2}));
}

}  // namespace remat
