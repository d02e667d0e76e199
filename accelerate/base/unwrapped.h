/// The type of a value that may be absent.
#pragma once

#include <optional>

namespace accelerate::internal {

/// T of std::optional<T>; other types are their own.
template <typename T>
struct Unwrapped {
  using Type = T;
};
template <typename T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
};

}  // namespace accelerate::internal
