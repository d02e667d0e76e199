// accelerate-plan REQUEST: what `accelerate plan` starts. REQUEST is JSON, as
// accelerate/examples/lm/layout_plan.h has it.
#include <exception>
#include <iostream>

#include <nlohmann/json.hpp>

#include "accelerate/examples/lm/layout_plan.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "accelerate-plan: expected a request in JSON; accelerate plan makes it\n";
    return 2;
  }
  try {
    const lm::PlanRequest request = lm::request_of(nlohmann::json::parse(argv[1]));
    std::cout << lm::plan_text(lm::plan(request)) << std::flush;
  } catch (const std::exception& error) {
    std::cerr << "accelerate plan: " << error.what() << "\n";
    return 2;
  }
  return std::cout ? 0 : 1;
}
