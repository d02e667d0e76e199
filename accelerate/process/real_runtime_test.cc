#include "accelerate/process/real_runtime.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/platform/environment.h"

namespace accelerate {
namespace {

absl::Duration patience_of(const char* text) {
  Environment environment;
  environment.set(env::kWatchSeconds, text);
  return watch_patience(environment);
}

TEST(WatchPatience, IsHalfAMinuteUnlessTheVariableSaysOtherwise) {
  Environment environment;
  environment.unset(env::kWatchSeconds);
  EXPECT_EQ(watch_patience(environment), absl::Seconds(30));
  EXPECT_EQ(patience_of("5"), absl::Seconds(5));
  EXPECT_GE(patience_of("0"), absl::Hours(1000));
  EXPECT_THROW(patience_of("soon"), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
