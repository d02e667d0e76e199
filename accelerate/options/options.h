/// The table of all options, one row each (accelerate/base/option.h), and the sections of
/// configuration files that they stand in.
///
/// A new option is a row, and the code that reads what it sets: launch_rows.cc has those of the
/// launcher, engine_rows.cc those that fill the fields of plug-ins and kwargs.
/// Errors: looking up a name that no row has is a programming error where stated.
/// Threads: constant data.
/// Mirrors: the flags of accelerate commands/launch.py and the fields of commands/config.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/option.h"

namespace accelerate::options {

/// In the order of the groups; an engine's in the order in which `accelerate config` asks for them.
absl::Span<const Option> all_options();

/// Null for a name that no row has.
const Option* find_option(absl::string_view name);

/// The row of a name that there is.
const Option& option(absl::string_view name);

/// The row of the section that fills a plug-in's field. Null for none.
const Option* find_field(Section section, absl::string_view field);

/// A map within a configuration file.
struct SectionName {
  Section section;
  const char* key;     ///< "fsdp_config"
  const char* prefix;  ///< "fsdp_"; keys may leave it out
};

absl::Span<const SectionName> all_sections();

/// The map of a key, "fsdp_config", or of a section. Null for none.
const SectionName* find_section(absl::string_view key);
const SectionName* find_section(Section section);

}  // namespace accelerate::options
