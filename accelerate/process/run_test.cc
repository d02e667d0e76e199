// A program without the simulator that is told to simulate.
#include "accelerate/process/run.h"

#include <cstdlib>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/environment.h"
#include "accelerate/process/launchers.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The targets that users of this checkout, of another Bazel workspace, and of CMake have to add.
const auto kSaysWhatToLink =
    AllOf(HasSubstr("`//simulator/run`"), HasSubstr("`@accelerate_cpp//simulator/run`"),
          HasSubstr("`Accelerate::simulator`"));

TEST(Run, SaysWhatAProgramLinksToSimulate) {
  setenv(env::kSimulate, "1x2", /*overwrite=*/1);
  ::testing::internal::CaptureStderr();
  const int code = run(0, nullptr, [](int, char**) { return 0; });
  const std::string errors = ::testing::internal::GetCapturedStderr();
  unsetenv(env::kSimulate);
  EXPECT_EQ(code, 2);
  EXPECT_THAT(errors, AllOf(HasSubstr("ACCELERATE_SIMULATE is set"), kSaysWhatToLink));
}

TEST(Run, LaunchSaysWhatAProgramLinksToSimulate) {
  try {
    launch([] {}, {.simulate = "1x2"});
    FAIL() << "launched a simulation without the simulator";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), kSaysWhatToLink);
  }
}

}  // namespace
}  // namespace accelerate
