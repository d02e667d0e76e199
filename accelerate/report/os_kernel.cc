#include "accelerate/report/os_kernel.h"

#include <sys/utsname.h>

#include <regex>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/values/versions.h"

namespace accelerate {

std::optional<std::string> internal::kernel_warning(std::string_view system,
                                                    std::string_view release) {
  constexpr char kMinimum[] = "5.5.0";
  static const std::regex kVersion(R"(\d+\.\d+\.\d+)");
  const std::string text(release);
  std::smatch version;
  if (system != "Linux" || !std::regex_search(text, version, kVersion)) return std::nullopt;
  if (compare_versions(version.str(), ">=", kMinimum)) return std::nullopt;
  return absl::StrCat("Linux ", version.str(), " is older than ", kMinimum,
                      ", on which a process may hang; a newer kernel is recommended");
}

void check_os_kernel(const Runtime& runtime) {
  utsname names;
  if (runtime.topology().rank != 0 || uname(&names) != 0) return;
  if (const auto warning = internal::kernel_warning(names.sysname, names.release)) {
    TORCH_WARN(*warning);
  }
}

}  // namespace accelerate
