// Says where its rank runs, once the ranks have met: the sum of rank + 1 over all of them.
#include <ATen/ops/full.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"

namespace {

int say_place(int, char**) {
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  const accelerate::Topology& topology = runtime.topology();
  std::vector<at::Tensor> sum = {at::full({1}, topology.rank + 1)};
  if (topology.world_size > 1) {
    runtime.new_group({.name = "world"})->allreduce(sum)->wait();
  }
  runtime.write_console(
      accelerate::ConsoleStream::kOut,
      absl::StrCat("place: ", topology.source, ", rank ", topology.rank, " of ",
                   topology.world_size, ", local rank ", topology.local_rank, " of ",
                   topology.local_world_size, ", RANK=", *runtime.environment().get("RANK"),
                   ", sum ", sum[0].item<int64_t>(), "\n"));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, say_place); }
