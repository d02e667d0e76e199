#include "launch/commands/probe.h"

#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"

namespace accelerate::launch::commands {

namespace {

constexpr absl::Duration kLimit = absl::Seconds(10);

std::string path_of(void* handle) {
  link_map* map = nullptr;
  char real[PATH_MAX];
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || realpath(map->l_name, real) == nullptr) {
    return "";
  }
  return real;
}

// The child writes '+' or '-' for the symbol, then the path; or '!' and the error.
void load_and_report(int fd, const std::string& name, const std::string& symbol) {
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) {
    write_all(fd, absl::StrCat("!", dlerror()));
    return;
  }
  const bool has_symbol = !symbol.empty() && dlsym(handle, symbol.c_str()) != nullptr;
  write_all(fd, absl::StrCat(has_symbol ? "+" : "-", path_of(handle)));
}

}  // namespace

LibraryProbe probe_library(const std::string& name, const std::string& symbol) {
  const absl::StatusOr<ChildResult> child =
      run_in_child([&](int fd) { load_and_report(fd, name, symbol); }, kLimit);
  if (!child.ok()) return {.error = std::string(child.status().message())};
  const std::string& answer = child->output;
  if (child->timed_out)
    return {.error = absl::StrCat("not loaded within ", absl::FormatDuration(kLimit))};
  if (answer.empty()) {
    if (child->signal == 0) return {.error = "it ends the process that loads it"};
    return {.error = absl::StrCat("it crashes when it is loaded (", strsignal(child->signal), ")")};
  }
  if (answer[0] == '!') return {.error = answer.substr(1)};
  return {.is_loadable = true, .path = answer.substr(1), .has_symbol = answer[0] == '+'};
}

std::optional<std::string> output_of(const std::vector<std::string>& argv) {
  const absl::StatusOr<ChildResult> child =
      run_command(argv, {.collects_errors = false, .limit = kLimit});
  if (!child.ok() || child->exit_code != 0) return std::nullopt;
  return child->output;
}

}  // namespace accelerate::launch::commands
