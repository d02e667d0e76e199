#include "trackers/common/file_options.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/safe_path.h"

namespace accelerate::trackers {

FileOptions file_options(std::string_view tracker, const TrackerSetup& setup) {
  InitKwargs kwargs(tracker, setup.init_kwargs);
  FileOptions options;
  if (const auto dir = kwargs.text("dir")) {
    if (dir->empty()) kwargs.refuse("dir", "the name of a folder");
    options.folder = folder_of_rank(*dir, setup.services.rank);
  } else {
    options.folder = join_path(setup.logging_dir, safe_path(setup.project_name));
  }
  options.run = kwargs.text("name").value_or(
      absl::StrCat(absl::FormatTime("%Y%m%d-%H%M%S-", setup.time, absl::UTCTimeZone()),
                   absl::Hex(setup.random_bits & 0xffff, absl::kZeroPad4)));
  kwargs.finish();
  return options;
}

std::string folder_of_rank(const std::string& folder, int rank) {
  return rank == 0 ? folder : join_path(folder, absl::StrCat("rank_", rank));
}

void throw_if_error(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

}  // namespace accelerate::trackers
