/// The table of options (accelerate/options) as the launcher looks at it: by flags, by keys of
/// configuration files, by headings.
///
/// A row makes the flag of `accelerate launch`, the key in the YAML file, the variable that a rank
/// gets, the question in `accelerate config`, and the row in accelerate/docs/launch_options.md.
/// Errors: none but of values; looking up a name that no row has is a programming error where
///         stated.
/// Threads: constant data.
/// Mirrors: the flags of accelerate commands/launch.py and the fields of commands/config.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/options/options.h"

namespace accelerate::launcher::settings {

using options::all_sections;
using options::find_section;
using options::Group;
using options::Section;
using options::SectionName;
using options::SettingOrigin;
using options::ValueType;
using Setting = options::Option;

inline absl::Span<const Setting> all_settings() { return options::all_options(); }

/// Null for a name that no row has.
inline const Setting* find_setting(absl::string_view name) { return options::find_option(name); }

/// The row of a name that there is.
inline const Setting& setting(absl::string_view name) { return options::option(name); }

/// The row of a flag, without dashes in front, `-` or `_` within; also of its other name, and of
/// negated ones. Null for none.
const Setting* find_flag(absl::string_view flag);

/// The row of a key within a section: with or without the section's prefix, or spelt as an older
/// release did. For Section::kTop and kSageMaker the keys at the top of such a file. Null for none.
const Setting* find_key(Section section, absl::string_view key);

/// The keys that `find_key` knows, sorted, without older spellings; for kTop and kSageMaker also
/// those of the sections that such a file may have.
std::vector<std::string> known_keys(Section section);

const char* group_title(Group group);

/// The names of the types of parallel runs in a file; and in one for SageMaker.
absl::Span<const char* const> distributed_types();
absl::Span<const char* const> sagemaker_distributed_types();

// The meaning of a value's text: one way of reading for flags, configuration files and variables.
// Errors: InvalidArgument with the expected and the actual text; callers add the place.

/// y yes t true on 1 / n no f false off 0, in any case.
absl::StatusOr<bool> parse_bool(absl::string_view text);

/// Three of them, "true,false,true", also in parentheses or square brackets, as lists are written.
absl::StatusOr<std::vector<bool>> parse_bools(absl::string_view text);

/// The numbers and the words of `text` are as the setting's type and choices want them.
absl::Status check_value(const Setting& setting, absl::string_view text);

/// Whether a JSON or YAML file can have the text.
bool is_utf8(const std::string& text);

/// The schema's spelling of a value, where choices may be in any case.
std::string schema_text(const Setting& setting, const std::string& text);

}  // namespace accelerate::launcher::settings
