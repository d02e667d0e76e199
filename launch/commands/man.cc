// `accelerate man [COMMAND]`: pages for man(1), made of the same declarations as the help.
//
//     accelerate man launch | man -l -
//     accelerate man --output_dir DIR

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "launch/commands/commands.h"
#include "launch/process/replace_file.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "man";

struct Options {
  std::string command;
  std::string output_dir;
};

int write_all(const std::string& folder, Invocation& invocation) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return fail(invocation, kName,
                absl::StrCat("cannot make the folder ", folder, ": ", error.message()));
  }
  for (const ManualPage& page : manual_pages()) {
    const std::string path = (std::filesystem::path(folder) / page.file).string();
    if (absl::Status ok = process::replace_file(path, page.text, 0644); !ok.ok()) {
      return fail(invocation, kName, ok);
    }
  }
  return finish(invocation);
}

int run(const Options& options, Invocation& invocation) {
  if (!options.output_dir.empty()) {
    if (options.command.empty()) return write_all(options.output_dir, invocation);
    return refuse(invocation, kName,
                  "--output_dir writes the pages of all commands; leave out the command");
  }
  const std::string file =
      absl::StrCat("accelerate", options.command.empty() ? "" : "-", options.command, ".1");
  for (const ManualPage& page : manual_pages()) {
    if (page.file != file) continue;
    invocation.out << page.text;
    return finish(invocation);
  }
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.push_back(command.name);
  return refuse(invocation, kName,
                absl::StrCat("unknown command ", options.command,
                             did_you_mean(options.command, names), "; see accelerate --help"));
}

void declare(CLI::App& app, Options& options) {
  app.footer(
      "To read a page: accelerate man launch | man -l -\n"
      "CMake installs all pages: man accelerate-launch.");
  add_value(app, "COMMAND", options.command, "", "the command; without one, accelerate itself");
  add_value(app, "--output_dir", options.output_dir, "DIR",
            "write the pages of all commands there");
}

}  // namespace

const Command kMan = {kName, "Print a command's page for man.", with_options<declare, run>};

}  // namespace accelerate::launcher::commands
