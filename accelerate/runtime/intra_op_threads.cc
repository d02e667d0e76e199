#include "accelerate/runtime/intra_op_threads.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

#include "accelerate/platform/env.h"

namespace accelerate {

void limit_intra_op_threads(const Environment& environment) {
  if (!environment.get_or(env::kOmpNumThreads, "").empty()) return;
  at::set_num_threads(1);
  // OpenBLAS keeps threads of its own, which LibTorch does not know. Which BLAS is loaded is the
  // system's choice, so the function is looked up rather than linked.
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) {
    set(1);
  }
}

}  // namespace accelerate
