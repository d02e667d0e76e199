// Holds the checkout to the rules of tidy.h.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tools/lint/source_tree.h"
#include "tools/lint/tidy.h"

namespace accelerate::tidy {
namespace {

// The folder that really holds a file which Bazel only linked into a test's runfiles; for a file
// at the top that is the checkout. Errors: std::runtime_error if `runfile` (relative to the
// workspace) is not among them.
std::filesystem::path folder_of_runfile(const std::string& runfile) {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (runfiles == nullptr || workspace == nullptr) {
    throw std::runtime_error("TEST_SRCDIR or TEST_WORKSPACE is not set: run this under Bazel");
  }
  const std::filesystem::path link = std::filesystem::path(runfiles) / workspace / runfile;
  if (!std::filesystem::exists(link)) throw std::runtime_error("no runfile " + link.string());
  return std::filesystem::canonical(link).parent_path();
}

const std::vector<File>& checkout() {
  static const std::vector<File> files = read_source_tree(folder_of_runfile(".clang-format"));
  return files;
}

TEST(Repository, IsTidy) {
  const std::vector<File>& files = checkout();
  // A listing that misses the checkout would find nothing wrong.
  const std::vector<std::string> known = {"WORKSPACE", "accelerate/process/run.h",
                                          "tools/lint/tidy.cc"};
  for (const std::string& path : known) {
    ASSERT_TRUE(std::any_of(files.begin(), files.end(),
                            [&](const File& file) { return file.path == path; }))
        << path << " is not among the " << files.size() << " files found";
  }
  std::string report;
  for (const Finding& finding : check_tree(files)) {
    report += to_string(finding) + "\n";
  }
  EXPECT_TRUE(report.empty()) << report;
}

// The list's floors, and the includes of the real rooms: one more include that leads upward, or out
// of a folder, is found, and closes a cycle where the other way exists.
TEST(Repository, HasFloorsThatRefuseAnUpwardInclude) {
  const std::vector<std::pair<std::string, std::string>> upward = {
      {"accelerate/base/planted.h", "accelerate/platform/file_system.h"},
      {"accelerate/comm/planted.cc", "accelerate/process/run.h"},
      {"accelerate/process/planted.cc", "accelerate/state/partial_state.h"},
      {"accelerate/state/planted.cc", "accelerate/step/training_step.h"},
      {"accelerate/data/planted.cc", "simulator/cluster/cluster.h"},
      {"simulator/core/planted.cc", "simulator/cluster/cluster.h"},
      {"launch/process/planted.cc", "launch/plan/launch_plan.h"},
      {"trackers/common/planted.cc", "trackers/mlflow/mlflow_tracker.h"},
  };
  for (const auto& [path, include] : upward) {
    std::vector<File> files = checkout();
    files.push_back({path, "#include \"" + include + "\"\n"});
    const Findings findings = check_floors(files);
    EXPECT_TRUE(std::any_of(findings.begin(), findings.end(),
                            [&, &path = path](const Finding& each) { return each.path == path; }))
        << path << " may include " << include;
  }
}

// One fault of each kind in the real tree is found, and only that one.
TEST(Repository, HasWallsThatAreHeld) {
  using Rule = Findings (*)(const std::vector<File>&);
  struct Fault {
    Rule rule;
    std::vector<File> planted;
    std::string path;
  };
  const std::vector<Fault> faults = {
      {check_file_circles,
       {{"accelerate/state/planted.h", "#include \"accelerate/state/planted_too.h\"\n"},
        {"accelerate/state/planted_too.h", "#include \"accelerate/state/planted.h\"\n"}},
       "accelerate/state/planted.h"},
      {check_simulated_names,
       {{"accelerate/precision/planted.cc", "bool is_known = name == \"h100\";\n"}},
       "accelerate/precision/planted.cc"},
  };
  for (const auto& [rule, planted, path] : faults) {
    std::vector<File> files = checkout();
    EXPECT_EQ(rule(files), Findings());
    files.insert(files.end(), planted.begin(), planted.end());
    const Findings findings = rule(files);
    ASSERT_EQ(findings.size(), 1) << path;
    EXPECT_EQ(findings[0].path, path);
  }
}

TEST(Repository, HasNoFloorMoreThanItNeeds) {
  std::vector<File> files = checkout();
  EXPECT_EQ(check_lowest_floors(files), Findings());
  // A room above all others, of which it needs none.
  for (File& file : files) {
    if (file.path != kFloorsPath) continue;
    const std::string top = "        [\"\"],\n    ],\n    \"simulator\"";
    const size_t at = file.contents.find(top);
    ASSERT_NE(at, file.contents.npos);
    file.contents.insert(at, "        [\"planted\"],\n");
  }
  files.push_back({"accelerate/planted/planted.h", "#include \"accelerate/base/enum_text.h\"\n"});
  const Findings findings = check_lowest_floors(files);
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& each) {
    return each.message.starts_with("accelerate/planted stands on floor ");
  })) << findings.size();
}

}  // namespace
}  // namespace accelerate::tidy
