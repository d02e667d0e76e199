// `accelerate compile [LAUNCH OPTIONS] PROGRAM [ARGS...]`: makes packages of a program's regions.
//
// The program runs once with recording on, as `accelerate launch` runs it: each region that has no
// package goes into the cache as a text. Then Python with torch compiles those texts. Training
// programs load the packages and never wait for Python.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/commands/compile_regions.h"
#include "launch/process/child_process.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "compile";
// The exit code of the script for a Python without torch, or with that of another release.
constexpr int kNoTorch = 3;

struct Options {
  std::string python = "python3";
  bool list = false;
  bool clear = false;
};

std::string counted(int64_t count) {
  return absl::StrCat(count, count == 1 ? " region" : " regions");
}

int list(const std::string& cache, Invocation& invocation) {
  const absl::StatusOr<std::vector<CachedRegion>> regions = list_regions(cache);
  if (!regions.ok()) return fail(invocation, kName, regions.status());
  for (const CachedRegion& region : *regions) {
    invocation.out << region.id.substr(0, 12) << "  LibTorch " << region.libtorch << "  "
                   << region.operators << " operators"
                   << (region.has_backward ? ", trains  " : "  ")
                   << (region.bytes > 0 ? binary_byte_text(region.bytes) : "no package") << "\n";
  }
  invocation.out << counted(static_cast<int64_t>(regions->size())) << " in " << cache << "\n";
  return finish(invocation);
}

int clear(const std::string& cache, Invocation& invocation) {
  const absl::StatusOr<int64_t> cleared = clear_regions(cache);
  if (!cleared.ok()) return fail(invocation, kName, cleared.status());
  invocation.out << counted(*cleared) << " removed from " << cache << "\n";
  return finish(invocation);
}

// The parts of "2.10.0".
std::vector<int> numbers_of(const std::string& release) {
  std::vector<int> numbers;
  for (const absl::string_view part : absl::StrSplit(release, '.')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) numbers.back() = 0;
  }
  return numbers;
}

// How many regions have no package.
struct Missing {
  int64_t latest = 0;   // of the latest release of LibTorch in the cache
  int64_t earlier = 0;  // of others, as before an upgrade

  int64_t all() const { return latest + earlier; }
};

absl::StatusOr<Missing> missing(const std::string& cache) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<CachedRegion> regions, list_regions(cache));
  std::vector<int> latest;
  for (const CachedRegion& region : regions) {
    latest = std::max(latest, numbers_of(region.libtorch));
  }
  Missing counts;
  for (const CachedRegion& region : regions) {
    if (region.bytes > 0) continue;
    ++(numbers_of(region.libtorch) == latest ? counts.latest : counts.earlier);
  }
  return counts;
}

// What a cache has of releases before an upgrade is not in the way.
void say_skipped(const Missing& missing, const std::string& cache, Invocation& invocation) {
  if (missing.earlier == 0) return;
  invocation.out << counted(missing.earlier) << " of earlier releases of LibTorch in " << cache
                 << " without a package: skipped; `accelerate compile --clear` empties the cache\n";
}

absl::StatusOr<int> record(const std::vector<std::string>& words, Invocation& invocation) {
  std::vector<std::string> line = {invocation.executable, "launch"};
  const bool names_backend = absl::c_any_of(words, [](const std::string& word) {
    return absl::StartsWith(word, "--dynamo_backend") || absl::StartsWith(word, "--dynamo-backend");
  });
  if (!names_backend) line.insert(line.end(), {"--dynamo_backend", "inductor"});
  line.insert(line.end(), words.begin(), words.end());
  std::vector<std::string> environment = invocation.environment;
  std::erase_if(environment, [](const std::string& word) {
    return absl::StartsWith(word, absl::StrCat(env::kCompileRecord, "="));
  });
  environment.push_back(absl::StrCat(env::kCompileRecord, "=true"));
  return process::run_program(line, environment);
}

// Makes the packages that are missing, each once.
int make_packages(const Options& options, const std::string& cache, Invocation& invocation) {
  const absl::StatusOr<Missing> before = missing(cache);
  if (!before.ok()) return fail(invocation, kName, before.status());
  if (before->all() == 0) {
    invocation.out << "no region in " << cache << " is without a package\n";
    return finish(invocation);
  }
  const TemporaryFolder folder;
  const std::string script = folder.path("compile_regions.py");
  HostFiles disk(1);
  UnsyncedFiles files(disk);
  if (absl::Status ok = write_file(files, script, kCompileRegions); !ok.ok()) {
    return fail(invocation, kName, ok);
  }
  const absl::StatusOr<int> exit_code =
      process::run_program({options.python, script, cache}, invocation.environment);
  if (!exit_code.ok() || *exit_code == kNoTorch) {
    if (before->latest == 0) {
      say_skipped(*before, cache, invocation);
      return finish(invocation);
    }
    return fail(
        invocation, kName,
        absl::StrCat(
            counted(before->all()), " in ", cache, " without a package: ", options.python,
            exit_code.ok()
                ? " has no torch of that release of LibTorch, or cannot import it (see above)"
                : " cannot be started",
            "; --python names another one, and `accelerate compile` alone goes on"));
  }
  const absl::StatusOr<Missing> after = missing(cache);
  if (!after.ok()) return fail(invocation, kName, after.status());
  if (*exit_code != 0 || after->latest > 0) {
    return fail(
        invocation, kName,
        absl::StrCat(counted(after->all()), " in ", cache, " without a package; see above"));
  }
  if (const int64_t made = before->all() - after->all(); made > 0) {
    invocation.out << counted(made) << " compiled into " << cache << "\n";
  }
  say_skipped(*after, cache, invocation);
  return finish(invocation);
}

int run(const Options& options, const std::vector<std::string>& words, Invocation& invocation) {
  const absl::StatusOr<std::string> cache = region_cache([&](std::string_view name) {
    return process::environment_value(invocation.environment, {name.data(), name.size()});
  });
  if (!cache.ok()) return fail(invocation, kName, cache.status());
  if (!words.empty() && (options.list || options.clear)) {
    return refuse(invocation, kName, "--list and --clear stand alone, without a program");
  }
  if (options.list) return list(*cache, invocation);
  if (options.clear) return clear(*cache, invocation);
  if (!words.empty()) {
    const absl::StatusOr<int> exit_code = record(words, invocation);
    if (!exit_code.ok()) return fail(invocation, kName, exit_code.status());
    if (*exit_code != 0) {
      return fail(invocation, kName,
                  absl::StrCat("the program failed with exit code ", *exit_code,
                               " while its regions were recorded"),
                  *exit_code);
    }
  }
  return make_packages(options, *cache, invocation);
}

void declare(CLI::App& app, Options& options) {
  app.usage("Usage: accelerate compile [OPTIONS] [LAUNCH OPTIONS] PROGRAM [ARGS...]");
  app.footer(
      "PROGRAM runs as accelerate launch runs it, with --dynamo_backend inductor unless another "
      "one "
      "is named. A few steps are enough.\n"
      "Without PROGRAM what was recorded before and has no package is compiled.\n"
      "The cache is ACCELERATE_COMPILE_CACHE, or accelerate-cpp/regions in the cache of the user.");
  add_value(app, "--python", options.python, "PATH",
            "the Python that compiles, with torch of the release of LibTorch (default "
            "python3)");
  auto* list = app.add_flag("--list", options.list, "print what is in the cache");
  app.add_flag("--clear", options.clear, "remove all that is in the cache")->excludes(list);
  // Behind the first word that is none of these, all belongs to launch and the program.
  app.prefix_command();
}

}  // namespace

const Command kCompile = {kName, "Make packages of a program's regions, before its training.",
                          with_options<declare, run>};

}  // namespace accelerate::launcher::commands
