#include "accelerate/runtime/optimizer_steps.h"

#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

thread_local int64_t steps = 0;

}  // namespace

void note_optimizer_step() {
  ++steps;
  if (Runtime* runtime = Runtime::find_current()) runtime->note_step();
}

int64_t optimizer_steps() { return steps; }

}  // namespace accelerate
