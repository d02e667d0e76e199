/// What the text of a setting's value means.
///
/// One way of reading for flags, configuration files and variables.
/// Errors:  InvalidArgument with the expected and the actual text; callers add the place.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launch/settings/schema.h"

namespace accelerate::launch::settings {

/// y yes t true on 1 / n no f false off 0, in any case.
absl::StatusOr<bool> parse_bool(absl::string_view text);

/// The numbers and the words of `text` are as the setting's type and choices want them.
absl::Status check_value(const Setting& setting, absl::string_view text);

/// Whether a JSON or YAML file can have the text.
bool is_utf8(const std::string& text);

/// The schema's spelling of a value from a file or a variable, where choices may be in any case.
std::string schema_text(const Setting& setting, const std::string& text);

}  // namespace accelerate::launch::settings
