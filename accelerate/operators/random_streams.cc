#include "accelerate/operators/random_streams.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/cleanup/cleanup.h"
#include "accelerate/base/enums.h"
#include "accelerate/comm/random.h"
#include "accelerate/operators/call_arguments.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// The number of the first stream, by which Megatron-LM tells these from the common one as well. The
// numbers below may be those of shares of the data, whose states checkpoints derive.
constexpr int64_t kFirstStream = 2718;

// Whether an operator takes numbers from a default generator.
bool draws(const OperatorCall& call) {
  if (!call.op().hasTag(at::Tag::nondeterministic_seeded)) return false;
  const std::vector<c10::Argument>& arguments = call.op().schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = torch::jit::peek(call.stack(), i, arguments.size());
    const std::string& name = arguments[i].name();
    if (value.isGenerator() && value.toGenerator().defined()) return false;
    if (value.isDouble() && value.toDouble() == 0 && (name == "p" || name == "dropout_p")) {
      return false;
    }
    if (value.isBool() && !value.toBool() && (name == "train" || name == "training")) return false;
  }
  return true;
}

}  // namespace

RandomStreams::RandomStreams(int64_t number, Copies copies)
    : OperatorHandler(OperatorOrder::kRandomStreams), number_(number), copies_(std::move(copies)) {}

std::shared_ptr<RandomStreams> RandomStreams::along(const ProcessGroupPtr& group, Copies copies) {
  std::vector<RNGType> types = {RNGType::kTorch};
  if (!Runtime::current().device().is_cpu()) types.push_back(RNGType::kDevice);
  synchronize_rng_states(group, types);
  return std::make_shared<RandomStreams>(group ? group->getRank() : 0, std::move(copies));
}

std::optional<RandomStreams::Part> RandomStreams::drawn_part(const OperatorCall& call) const {
  if (!draws(call)) return std::nullopt;
  for (const c10::IValue& value : arguments_of(call)) {
    if (!value.isTensor()) continue;
    const at::Tensor& tensor = value.toTensor();
    // Without values nothing is drawn.
    if (!tensor.defined() || tensor.is_meta()) continue;
    const int64_t copies = copies_(tensor);
    if (copies > 0) return Part{.device = tensor.device(), .copies = copies};
  }
  return std::nullopt;
}

void RandomStreams::call(const OperatorCall& call) {
  const std::optional<Part> part = drawn_part(call);
  if (!part) return call.proceed();
  // What the operator calls draws from its stream, whatever it draws for.
  const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kRandomStreams);
  at::empty({1}, at::TensorOptions(part->device).dtype(at::kLong)).random_();
  const at::Generator generator = at::globalContext().defaultGenerator(part->device);
  const at::Tensor common = generator_state(generator);
  const absl::Cleanup go_on = [&] { set_generator_state(generator, common); };
  set_generator_state(generator, generator_state(derived_generator(
                                     generator, common, kFirstStream + number_ / part->copies)));
  call.proceed();
}

}  // namespace accelerate
