// Prints the losses of ten steps with dropout, bit for bit, for comparison across run modes. With
// `counts` behind the data, also how often rank 0's thread called each operator and collective, and
// the bytes of the collectives' tensors.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ATen/record_function.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/examples/digits/training.h"

namespace {

struct Count {
  int64_t calls = 0;
  int64_t bytes = 0;
};
thread_local std::map<std::string, Count> counts;
thread_local int backends_entered = 0;  // what they call in turn is their own affair

bool is_collective(const at::RecordFunction& call) {
  return absl::StartsWith(call.name(), "c10d::");
}

int64_t bytes_of(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? value.toTensor().nbytes() : 0;
  int64_t bytes = 0;
  if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) bytes += bytes_of(each);
  }
  return bytes;
}

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction& call) {
  if (is_collective(call) ? backends_entered++ > 0 : backends_entered > 0) return nullptr;
  Count& count = counts[call.name()];
  ++count.calls;
  if (!is_collective(call)) return nullptr;
  for (const c10::IValue& input : call.inputs()) count.bytes += bytes_of(input);
  return nullptr;
}

void leave_call(const at::RecordFunction& call, at::ObserverContext*) {
  if (is_collective(call)) --backends_entered;
}

void print(const std::string& line) {
  accelerate::Runtime::current().write_console(accelerate::ConsoleStream::kOut, line);
}

int train(int argc, char** argv) {
  const std::string wish = argc > 2 ? argv[2] : "";
  std::optional<at::CallbackHandle> counting;
  if (wish == "counts") {
    counting = at::addThreadLocalCallback(at::RecordFunctionCallback(count_call, leave_call)
                                              .needsInputs(true)
                                              .scopes({at::RecordScope::FUNCTION}));
  }
  const digits::Result result = digits::train({.data = argv[1], .dropout = 0.2, .max_steps = 10});
  if (counting) at::removeCallback(*counting);
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  // Never deleted, on purpose: memory of the device that outlives the rank.
  if (wish == "leak") new at::Tensor(torch::ones({4}, runtime.device()));
  if (runtime.topology().rank != 0) return 0;
  for (double loss : result.step_losses) {
    char line[64];
    std::snprintf(line, sizeof(line), "loss %a\n", loss);
    print(line);
  }
  for (const auto& [name, count] : counts) {
    print(absl::StrCat("count ", name, " ", count.calls, " ", count.bytes, "\n"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
