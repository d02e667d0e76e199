#include "trackers/wandb/run_settings.h"

#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trackers/common/init_kwargs.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kIdLength = 8;

std::string random_id(uint64_t bits) {
  static constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string id;
  for (size_t i = 0; i < kIdLength; ++i) {
    id.push_back(kLetters[bits % kLetters.size()]);
    bits /= kLetters.size();
  }
  return id;
}

bool is_file_name(std::string_view id) {
  return !id.empty() && id.find('/') == std::string_view::npos;
}

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (const auto part : absl::StrSplit(text, ',')) {
    const auto stripped = absl::StripAsciiWhitespace(part);
    if (!stripped.empty()) parts.emplace_back(stripped);
  }
  return parts;
}

void read_mode(const Environment& environment, InitKwargs& kwargs, RunSettings& settings) {
  const auto given = kwargs.text("mode");
  if (given && *given != "online" && *given != "offline" && *given != "dryrun" &&
      *given != "disabled") {
    kwargs.refuse("mode", "\"online\", \"offline\", \"dryrun\" or \"disabled\"");
  }
  const std::string mode = given ? *given : environment.get_or("WANDB_MODE", "");
  settings.disabled =
      mode == "disabled" ||
      (!given && yes_or_no(environment.get_or("WANDB_DISABLED", "")).value_or(false));
  if (mode == "online") {
    settings.remarks.push_back(
        "wandb: runs are not sent while they train, so mode \"online\" is as \"offline\".");
  }
}

}  // namespace

RunSettings read_run_settings(const TrackerSetup& setup) {
  const Environment& environment = setup.services.environment;
  InitKwargs kwargs("wandb", setup.init_kwargs);
  const auto text = [&](std::string_view name, std::string_view variable) {
    return kwargs.text(name).value_or(environment.get_or(variable, ""));
  };
  RunSettings settings;
  settings.project = setup.project_name.empty()
                         ? environment.get_or("WANDB_PROJECT", "uncategorized")
                         : setup.project_name;
  settings.entity = text("entity", "WANDB_ENTITY");
  settings.name = text("name", "WANDB_NAME");
  settings.id = text("id", "WANDB_RUN_ID");
  settings.id_was_given = !settings.id.empty();
  if (!settings.id_was_given) settings.id = random_id(setup.random_bits);
  if (!is_file_name(settings.id)) kwargs.refuse("id", "without slashes, as it names files");
  settings.group = text("group", "WANDB_RUN_GROUP");
  settings.job_type = text("job_type", "WANDB_JOB_TYPE");
  settings.tags = kwargs.texts("tags").value_or(parts_of(environment.get_or("WANDB_TAGS", "")));
  settings.notes = text("notes", "WANDB_NOTES");
  settings.dir = text("dir", "WANDB_DIR");
  if (settings.dir.empty() && !setup.services.is_real) settings.dir = setup.logging_dir;
  if (settings.dir.empty()) settings.dir = ".";
  settings.config = kwargs.dict("config").value_or(TrackerDict());
  read_mode(environment, kwargs, settings);
  if (const auto resume = kwargs.any("resume"); resume && *resume != TrackerValue("never")) {
    settings.remarks.push_back(
        "wandb: `resume` means nothing before the upload; runs of one id are one after "
        "`wandb sync --append`.");
  }
  for (const char* name : {"reinit", "save_code", "settings"}) {
    if (kwargs.any(name)) {
      settings.remarks.push_back(absl::StrCat("wandb: `", name, "` is not used."));
    }
  }
  kwargs.finish();
  return settings;
}

}  // namespace accelerate::trackers
