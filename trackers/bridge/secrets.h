/// Keeps keys and passwords out of what is shown.
///
/// Threads: const members any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/platform/environment.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

class Secrets {
 public:
  /// The values of the variables, and of the texts in `kwargs` (in lists and dictionaries too),
  /// whose names are secret, see trackers/common/secret_names.h. One of fewer than six characters
  /// is none.
  Secrets(const Environment& environment, const TrackerDict& kwargs);

  /// `text` with "***" in their places, and in place of names and passwords in URLs.
  std::string mask(std::string_view text) const;

 private:
  void add(bool is_secret, const TrackerValue& value);

  std::vector<std::string> values_;  // longest first: one may hold another
};

}  // namespace accelerate::trackers
