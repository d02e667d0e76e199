/// Values as W&B keeps them: JSON at the end of a path of names.
///
/// Dictionaries are paths: {"lr": {"head": 0.1}} is 0.1 at "lr", "head". Tensors of one element
/// are numbers, of up to 32 lists, and larger ones histograms.
/// Threads: one.
/// Mirrors: wandb util.py, json_friendly and maybe_compress_history.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// How numbers that JSON does not have are written.
enum class NotANumber {
  /// NaN, Infinity and -Infinity, as Python does and W&B's own readers take it.
  kLiteral,
  kNull,
};

std::string to_json(const TrackerValue& value, NotANumber not_a_number = NotANumber::kLiteral);

/// What W&B shows as a histogram. Without values that are not finite.
TrackerDict to_histogram(const std::vector<double>& values, int bins);

class Leaves {
 public:
  using Path = std::vector<std::string>;

  /// Sets what is in a dictionary one by one; an empty one sets nothing. A value takes the place
  /// of all that was at, below or above its path.
  void set(const Path& path, const TrackerValue& value);
  void set(std::string_view name, const TrackerValue& value) {
    set(Path{std::string(name)}, value);
  }
  void set_all(const Leaves& others);

  bool empty() const { return json_.empty(); }
  void clear() { json_.clear(); }
  const std::map<Path, std::string>& by_path() const { return json_; }

 private:
  void set_leaf(const Path& path, std::string json);

  std::map<Path, std::string> json_;
};

/// All of it as one JSON object.
std::string to_json(const Leaves& leaves);

}  // namespace accelerate::trackers
