// Holds the checkout to the rules of tidy.h.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/lint/source_tree.h"
#include "tools/lint/tidy.h"

namespace accelerate::tidy {
namespace {

TEST(Repository, IsTidy) {
  const std::vector<File> files = read_source_tree(folder_of_runfile(".clang-format"));
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

}  // namespace
}  // namespace accelerate::tidy
