#include "integration_tests/tensor/first_steps.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "absl/strings/numbers.h"

namespace accelerate {

int first_steps(int all) {
  constexpr int kFew = 4;
  const char* const given = std::getenv("ACCELERATE_ORACLE_STEPS");
  const bool takes_all = given != nullptr && std::string_view(given) == "all";
  return takes_all ? all : std::min(all, kFew);
}

uint64_t orders_of_ranks() {
  uint64_t orders = 0;
  const char* const given = std::getenv("ACCELERATE_ORDERS_OF_RANKS");
  return given != nullptr && absl::SimpleAtoi(given, &orders) ? orders : 5;
}

}  // namespace accelerate
