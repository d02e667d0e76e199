#include "accelerate/config/profile_kwargs.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_join.h"

namespace accelerate {

void check(const ProfileKwargs& kwargs) {
  static const std::set<std::string> kActivities = {"cpu", "cuda", "hpu", "mtia", "xpu"};
  for (const std::string& activity : kwargs.activities) {
    TORCH_CHECK_VALUE(kActivities.contains(activity), "Invalid profiler activity: \"", activity,
                      "\". Must be one of ", absl::StrJoin(kActivities, ", "));
  }
  if (!kwargs.schedule_option) return;
  visit_fields(*kwargs.schedule_option, [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value >= 0, "Invalid profiler schedule: ", name, "=", value,
                      " is less than 0");
  });
  TORCH_CHECK_VALUE(kwargs.schedule_option->active > 0,
                    "Invalid profiler schedule: active=0 records nothing; it must be at least 1");
}

}  // namespace accelerate
