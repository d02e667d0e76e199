#include "simulator/report/report.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {

absl::Status write_report(const Trace& trace, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot create the folder ", directory));
  }
  for (const auto& [write, name] :
       {std::pair{&write_summary, "summary.json"}, std::pair{&write_perfetto, "trace.json"},
        std::pair{&write_html, "report.html"}}) {
    absl::Status status = write(trace, (std::filesystem::path(directory) / name).string());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace accelerate::simulator
