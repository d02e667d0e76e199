#include "accelerate/base/option.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate::options {

std::string Option::variable_name() const {
  if (variable != nullptr) return variable;
  return variable_prefix != nullptr ? absl::StrCat(variable_prefix, absl::AsciiStrToUpper(name))
                                    : "";
}

bool Option::has_old_key(absl::string_view text) const {
  if (old_keys == nullptr) return false;
  const std::vector<absl::string_view> keys = absl::StrSplit(old_keys, '|');
  return std::ranges::count(keys, text) > 0;
}

std::vector<absl::string_view> Option::choice_list() const {
  if (choices == nullptr) return {};
  return absl::StrSplit(choices, '|');
}

}  // namespace accelerate::options
