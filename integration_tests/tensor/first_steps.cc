#include "integration_tests/tensor/first_steps.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace accelerate {

int first_steps(int all) {
  constexpr int kFew = 4;
  const char* const given = std::getenv("ACCELERATE_ORACLE_STEPS");
  const bool takes_all = given != nullptr && std::string_view(given) == "all";
  return takes_all ? all : std::min(all, kFew);
}

}  // namespace accelerate
