/// The environment variables one rank sees.
///
/// A rank of a simulated cluster shares its process with other ranks, so variables are an overlay
/// over the process's own environment: `set` and `unset` never touch the process.
/// Threads: an object belongs to one rank; it is not synchronised.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

class Environment {
 public:
  /// An overlay over this process's environment.
  Environment() = default;

  /// The variable's value, or nothing where it is unset. An empty value is a value.
  std::optional<std::string> get(std::string_view name) const;

  /// The value or, where the variable is unset or empty, `fallback`.
  std::string get_or(std::string_view name, std::string_view fallback) const;

  /// All that is set, the process's own variables included.
  std::map<std::string, std::string> variables() const;

  void set(std::string_view name, std::string value);
  void unset(std::string_view name);

 private:
  std::map<std::string, std::optional<std::string>, std::less<>> overlay_;
};

}  // namespace accelerate
