#include "launch/process/terminal_colour.h"

#include <fcntl.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

bool shows(int fd, const Variables& variables) {
  Environment environment;
  for (const char* name : {"NO_COLOR", "CLICOLOR_FORCE", "TERM"}) environment.set(name, "");
  for (const auto& [name, value] : variables) environment.set(name, value);
  return shows_colour(fd, environment);
}

TEST(TerminalColour, IsForTerminalsUnlessTheEnvironmentSaysOtherwise) {
  const UniqueFd controller(posix_openpt(O_RDWR | O_NOCTTY));
  ASSERT_EQ(grantpt(controller.get()), 0);
  ASSERT_EQ(unlockpt(controller.get()), 0);
  const UniqueFd terminal(open(ptsname(controller.get()), O_RDWR | O_NOCTTY));
  ASSERT_TRUE(terminal.is_open());
  const UniqueFd file(open("/dev/null", O_WRONLY));
  struct Case {
    Variables variables;
    bool on_terminal;
    bool in_file;
  };
  for (const Case& each :
       {Case{{{"TERM", "xterm"}}, true, false}, Case{{{"TERM", "dumb"}}, false, false},
        Case{{}, false, false}, Case{{{"TERM", "xterm"}, {"NO_COLOR", "1"}}, false, false},
        Case{{{"TERM", "xterm"}, {"NO_COLOR", ""}}, true, false},
        Case{{{"CLICOLOR_FORCE", "1"}}, true, true},
        Case{{{"TERM", "xterm"}, {"CLICOLOR_FORCE", "0"}}, true, false},
        Case{{{"CLICOLOR_FORCE", "1"}, {"NO_COLOR", "1"}}, false, false}}) {
    std::string what;
    for (const auto& [name, value] : each.variables) what += name + "=" + value + " ";
    EXPECT_EQ(shows(terminal.get(), each.variables), each.on_terminal) << what;
    EXPECT_EQ(shows(file.get(), each.variables), each.in_file) << what;
  }
}

TEST(TerminalColour, SurroundsTextAndLeavesItAsItIsWithout) {
  EXPECT_EQ(rank_prefix(3, false), "[rank 3] ");
  EXPECT_EQ(rank_prefix(0, true), "\x1b[36m[rank 0] \x1b[0m");
  EXPECT_NE(rank_prefix(0, true).substr(0, 5), rank_prefix(1, true).substr(0, 5));
  EXPECT_EQ(as_error("failed", false), "failed");
  EXPECT_EQ(as_error("failed", true), "\x1b[1;31mfailed\x1b[0m");
}

}  // namespace
}  // namespace accelerate::launcher::process
