// One rank of watch_test's jobs: rank CALL OTHERS CALLER, where OTHERS is the action of the ranks
// that do not make the call.
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include <unistd.h>

#include "accelerate/accelerate.h"
#include "integration_tests/watch/collective_calls.h"

namespace {

using accelerate::watch_tests::Others;

// Ends a rank that hangs, so that the test fails.
constexpr unsigned kHangsAfterSeconds = 60;

int run(int argc, char** argv) {
  const std::map<std::string, Others> others{{"end", Others::kEnd},
                                             {"compute", Others::kCompute},
                                             {"differ", Others::kDiffer},
                                             {"freeze", Others::kFreeze}};
  accelerate::watch_tests::run_rank(accelerate::watch_tests::find_call(argv[1]), others.at(argv[2]),
                                    std::atoi(argv[3]));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " CALL end|compute|differ|freeze CALLER\n";
    return 2;
  }
  alarm(kHangsAfterSeconds);
  return accelerate::run(argc, argv, run);
}
