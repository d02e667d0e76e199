// accelerate-plan REQUEST: what `accelerate plan` starts. REQUEST is JSON, as
// accelerate/examples/lm/layout_plan.h has it; with "json": true the answer is JSON, too.
#include <fcntl.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"
#include "accelerate/examples/lm/layout_plan.h"

namespace {

// Leaves out what each of the simulated jobs says on standard error, as where its ranks are.
class QuietErrors {
 public:
  QuietErrors() : before_(dup(STDERR_FILENO)) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0) return;
    dup2(nowhere, STDERR_FILENO);
    close(nowhere);
  }
  ~QuietErrors() {
    if (before_ < 0) return;
    dup2(before_, STDERR_FILENO);
    close(before_);
  }
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;

 private:
  const int before_;
};

std::vector<lm::PlannedLayout> quietly_planned(const lm::PlanRequest& request) {
  const QuietErrors quiet;
  return lm::plan(request);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "accelerate-plan: expected a request in JSON; accelerate plan makes it\n";
    return 2;
  }
  try {
    const nlohmann::json request = nlohmann::json::parse(argv[1]);
    const std::vector<lm::PlannedLayout> layouts = quietly_planned(lm::request_of(request));
    if (request.value("json", false)) {
      std::cout << accelerate::json_text(lm::plan_json(layouts)) << std::endl;
    } else {
      std::cout << lm::plan_text(layouts) << std::flush;
    }
  } catch (const std::exception& error) {
    std::cerr << "accelerate plan: " << error.what() << "\n";
    return 2;
  }
  return std::cout ? 0 : 1;
}
