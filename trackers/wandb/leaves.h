/// Values in W&B's form: JSON at paths of names.
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

/// How numbers that are not finite are written.
enum class NotANumber {
  /// NaN, Infinity and -Infinity, as Python writes them and W&B's readers accept them.
  kLiteral,
  kNull,
};

std::string to_json(const TrackerValue& value, NotANumber not_a_number = NotANumber::kLiteral);

/// A histogram of the finite values, in W&B's form.
TrackerDict to_histogram(const std::vector<double>& values, int bins);

class Leaves {
 public:
  using Path = std::vector<std::string>;

  /// Sets the entries of a dictionary one by one; an empty dictionary sets nothing. A value
  /// replaces all values at, below or above its path.
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

/// All values as one JSON object.
std::string to_json(const Leaves& leaves);

}  // namespace accelerate::trackers
