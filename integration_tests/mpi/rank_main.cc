// One rank of failure_test's jobs: rank FAILURE. Rank 1 does what it says; the others all-reduce.
#include <cstdlib>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include "accelerate/accelerate.h"

namespace {

using accelerate::Accelerator;

// A rank that hangs is ended, which the test then sees.
constexpr unsigned kHangsAfterSeconds = 60;

int run(int argc, char** argv) {
  const std::map<std::string, void (*)(Accelerator&)> failures{
      {"none", [](Accelerator& a) { a.reduce(torch::ones({2})); }},
      {"ends", [](Accelerator&) {}},
      {"throws", [](Accelerator&) { throw std::runtime_error("out of patience"); }},
      {"is_killed", [](Accelerator&) { raise(SIGKILL); }},
      {"stops", [](Accelerator&) { raise(SIGSTOP); }},
      {"differs", [](Accelerator& a) { a.reduce(torch::ones({3})); }},
  };
  Accelerator accelerator({.kwargs_handlers = {accelerate::InitProcessGroupKwargs{
                               .backend = "mpi", .timeout = absl::Seconds(2)}}});
  accelerator.wait_for_everyone();
  if (accelerator.process_index() == 1) {
    failures.at(argv[1])(accelerator);
  } else {
    const torch::Tensor sum = accelerator.reduce(torch::ones({2}));
    if (accelerator.is_main_process()) std::cout << "sum " << sum[0].item<float>() << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " none|ends|throws|is_killed|stops|differs\n";
    return 2;
  }
  alarm(kHangsAfterSeconds);
  return accelerate::run(argc, argv, run);
}
