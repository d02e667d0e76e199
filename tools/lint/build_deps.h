/// What the rules of a BUILD file depend on, for the floors of rooms.
///
/// Reads calls of rules whose arguments are written out, as buildifier leaves them; lists in
/// select() count with all their choices. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::tidy {

struct BuildDeps {
  /// The labels in the `deps` of room() and of the other rules.
  std::vector<std::string> deps;
  /// Those that a room's tests and benchmarks have besides.
  std::vector<std::string> of_tests;
  /// Whether room() is visible to everybody, so that tests of any room may depend on it.
  bool is_public = false;
};

BuildDeps build_deps(std::string_view text);

/// The package of a label whose target has the package's name: "a/b" of "//a/b" and "//a/b:b".
/// Empty for other labels.
std::string package_of(std::string_view label);

}  // namespace accelerate::tidy
