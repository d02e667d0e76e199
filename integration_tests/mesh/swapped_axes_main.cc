// One of four ranks, arranged as cp 2 x tp 2, of which ranks 1 and 2 reduce along cp first and the
// others along tp.
#include <unistd.h>

#include <ATen/ops/ones.h>

#include "absl/time/time.h"
#include "accelerate/comm/operations.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// Ends a rank that hangs, so that the test fails.
constexpr unsigned kHangsAfterSeconds = 60;

int reduce_along_both(int /*argc*/, char** /*argv*/) {
  Runtime& runtime = Runtime::current();
  const DeviceMesh mesh(Mesh({.cp = 2, .tp = 2}), runtime, {.timeout = absl::Seconds(2)});
  const bool swaps = runtime.topology().rank == 1 || runtime.topology().rank == 2;
  for (const MeshAxis axis :
       {swaps ? MeshAxis::kCp : MeshAxis::kTp, swaps ? MeshAxis::kTp : MeshAxis::kCp}) {
    reduce_tensor(mesh.group(axis), at::ones({1}), Reduction::kSum);
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  alarm(accelerate::kHangsAfterSeconds);
  return accelerate::run(argc, argv, accelerate::reduce_along_both);
}
