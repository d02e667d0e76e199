/// Compares a recorded answer with the one that is got.
///
/// Integers are equal exactly. Where one of two numbers is a float, they may differ by a tolerance.
/// An object that only has an `error` is met by an error of the library's at that place that stands
/// for it (see errors.h), and so is an `error` beside other fields. An object with `hash_dependent`
/// holds `variants`, any of which will do; with `equal_as_sets`, in any order. Everything else must
/// be equal.
/// Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

struct Difference {
  /// Such as `ranks[1].log[0][2].g`; empty for the whole.
  std::string path;
  /// The two values at that place, on one line each, shortened.
  std::string expected;
  std::string got;
};

/// By how much floats may differ: a part of the larger one, or a number.
struct Tolerance {
  double relative = 1e-6;
  double absolute = 0;
};

/// The first place in document order (of objects: by key) where the two differ; nothing if none.
std::optional<Difference> first_difference(const nlohmann::json& expected,
                                           const nlohmann::json& got,
                                           const Tolerance& tolerance = {});

/// Whether an expectation is an error.
bool is_error(const nlohmann::json& expected);

}  // namespace accelerate::golden
