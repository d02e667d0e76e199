// The main function of tests that are compiled together (room.bzl): runs those of one source, which
// has the program's name.
#include <cstdio>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const std::string program = argv[0];
  const std::string source = "/" + program.substr(program.rfind('/') + 1) + ".cc";
  bool found = false;
  std::string others;
  std::set<std::string> names;
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  for (int i = 0; i < tests.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *tests.GetTestSuite(i);
    std::string others_of_suite;
    bool has_own = false;
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = std::string(suite.name()) + "." + test.name();
      // A filter has names alone, and would leave out both.
      if (!names.insert(name).second) {
        std::fprintf(
            stderr,
            "%s: two sources that are compiled together have a test %s; see room.bzl's `apart`\n",
            argv[0], name.c_str());
        return 1;
      }
      if (std::string(test.file()).ends_with(source)) {
        has_own = true;
      } else {
        others_of_suite += ":" + name;
      }
    }
    found = found || has_own;
    others += has_own ? others_of_suite : std::string(":") + suite.name() + ".*";
  }
  if (!found) {
    std::fprintf(stderr, "%s: there is no test of a source *%s in this program\n", argv[0],
                 source.c_str());
    return 1;
  }
  if (!others.empty()) {
    // What stands behind the first "-" is left out.
    const std::string filter = GTEST_FLAG_GET(filter);
    const bool leaves_out = filter.find('-') != std::string::npos;
    GTEST_FLAG_SET(filter, filter + (leaves_out ? others : "-" + others.substr(1)));
  }
  return RUN_ALL_TESTS();
}
