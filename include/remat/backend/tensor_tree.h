// SPDX-License-Identifier: BSD-3-Clause

// Access to the tensors in arguments and results: std containers of tensors, and user structs
// through one trait.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace remat {

/// The trait by which remat sees the tensors of a type. Specialise it for a struct of your own:
///
///   template <> struct remat::TensorTree<Output> {
///     template <class Self, class F> static void visit(Self& self, F&& f) { f(self.logits);
///     f(self.hidden); }
///   };
///
/// visit() calls `f` for each member that holds tensors, always in the same order; Self is Output
/// or const Output. Members may be of any type that has the trait; other members are skipped and
/// copied with the struct.
template <class T>
struct TensorTree {
  static constexpr bool kUnknown = true;
};

namespace detail {

template <class T>
inline constexpr bool kHasTensorTree = !requires {
  TensorTree<T>::kUnknown;
};

/// Calls `f(at::Tensor&)` for each tensor in `value`. Types without the trait have no tensors.
template <class T, class F>
void visit_tensors(T& value, F&& f) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    f(value);
  } else if constexpr (kHasTensorTree<Plain>) {
    TensorTree<Plain>::visit(value, [&](auto& member) { visit_tensors(member, f); });
  }
}

/// True if every leaf of T is a tensor, as a region's result requires. A user struct with the trait
/// counts as tensors.
template <class T>
inline constexpr bool kAllTensors = kHasTensorTree<T>;
template <>
inline constexpr bool kAllTensors<at::Tensor> = true;
template <class T, class A>
inline constexpr bool kAllTensors<std::vector<T, A>> = kAllTensors<T>;
template <class T, size_t N>
inline constexpr bool kAllTensors<std::array<T, N>> = kAllTensors<T>;
template <class T>
inline constexpr bool kAllTensors<std::optional<T>> = kAllTensors<T>;
template <class A, class B>
inline constexpr bool kAllTensors<std::pair<A, B>> = kAllTensors<A>&& kAllTensors<B>;
template <class... Ts>
inline constexpr bool kAllTensors<std::tuple<Ts...>> = (kAllTensors<Ts> && ...);
template <class K, class V, class C, class A>
inline constexpr bool kAllTensors<std::map<K, V, C, A>> = kAllTensors<V>;

/// visit() for types that a range-for loop iterates over.
struct VisitElements {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    for (auto& element : self) f(element);
  }
};

/// visit() for types that std::apply unpacks.
struct VisitMembers {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    std::apply([&](auto&... member) { (f(member), ...); }, self);
  }
};

}  // namespace detail

template <class T, class A>
struct TensorTree<std::vector<T, A>> : detail::VisitElements {};
// std::vector<bool> packs its elements into bits, which no reference can visit.
template <class A>
struct TensorTree<std::vector<bool, A>> {
  static constexpr bool kUnknown = true;
};
template <class T, size_t N>
struct TensorTree<std::array<T, N>> : detail::VisitElements {};
template <class A, class B>
struct TensorTree<std::pair<A, B>> : detail::VisitMembers {};
template <class... Ts>
struct TensorTree<std::tuple<Ts...>> : detail::VisitMembers {};

template <class T>
struct TensorTree<std::optional<T>> {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    if (self) f(*self);
  }
};

template <class K, class V, class C, class A>
struct TensorTree<std::map<K, V, C, A>> {
  template <class Self, class F>
  static void visit(Self& self, F&& f) {
    for (auto& [key, value] : self) f(value);
  }
};

}  // namespace remat
