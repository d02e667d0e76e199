/// The questions of `accelerate config`, and the configuration that the answers make.
///
/// Answers go to where the settings' schema has their names.
/// Threads: one.
/// Mirrors: accelerate commands/config/cluster.py and sagemaker.py; the order and the defaults.
/// Differs: a simulated cluster is a machine type; every answer gets to the key that launch reads;
///          access keys are not asked for; an empty answer is always one that launch takes, except
///          where a name has no default.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/dialogue/prompter.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::dialogue {

/// Whether a setting is to be asked for; of others their question is shown with "not in this
/// version", and what follows from it is left out.
using Works = bool (*)(const settings::Setting&);

inline bool works_in_this_version(const settings::Setting& setting) { return setting.works(); }

/// What proposals follow from.
struct Surroundings {
  /// What `~` stands for in paths.
  std::string home;
  settings::Machine machine = {};
  /// The host name under which other machines reach this machine.
  std::string host_name = "localhost";
  /// The name of the TPU pod that this machine belongs to; empty for none.
  std::string tpu_name = {};
  /// Whether the simulator reads a cluster.
  Prompter::Check check_cluster = {};
};

/// Every proposal is one that launch takes, and answers are checked at their question. Errors: the
/// prompter's; `config` has the answers until then, and no others.
absl::Status ask_configuration(Prompter& prompter, const Surroundings& surroundings,
                               settings::ConfigFile& config, Works works = &works_in_this_version);

/// "KEY=VALUE" for all that the configuration has: what `set_value` makes the same one of.
std::vector<std::string> assignments_of(const settings::ConfigFile& config);

/// Sets a value at the place that the schema has for `name`, in the type that it has. `text` must
/// be one that the schema accepts; lists are separated by commas.
void put_value(settings::ConfigFile& config, absl::string_view name, absl::string_view text);

/// The same for what a person typed: "KEY=VALUE", KEY being a setting's name, a file's key or
/// "fsdp_config.fsdp_version". An empty value takes the key out.
/// Errors: InvalidArgument naming the key, with the nearest one that there is, or the value.
absl::Status set_value(settings::ConfigFile& config, absl::string_view assignment);

}  // namespace accelerate::launcher::dialogue
