#include "launch/settings/basic_config.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"

namespace accelerate {

bool write_basic_config(std::string_view mixed_precision, std::string_view save_location) {
  namespace settings = launcher::settings;
  std::vector<std::string> environment;
  for (const auto& [name, value] : Environment().variables()) {
    environment.push_back(absl::StrCat(name, "=", value));
  }
  const std::string path = save_location.empty() ? settings::default_config_path(environment)
                                                 : std::string(save_location);
  const absl::StatusOr<bool> written = settings::write_basic_config(
      std::string(mixed_precision), path, settings::this_machine(environment));
  if (!written.ok()) {
    throw std::invalid_argument(absl::StrCat("write_basic_config: ", written.status().message()));
  }
  return *written;
}

}  // namespace accelerate
