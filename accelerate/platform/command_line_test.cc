#include "accelerate/platform/command_line.h"

#include <cerrno>
#include <string>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(CommandLine, BeginsWithTheProgramAsItWasCalled) {
  EXPECT_EQ(command_line().front(), std::string(program_invocation_name));
}

}  // namespace
}  // namespace accelerate
