#include "accelerate/state/accelerator_state.h"

#include <memory>
#include <sstream>

#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr char kMixedPrecision[] = "ACCELERATE_MIXED_PRECISION";

}  // namespace

std::optional<PrecisionType> mixed_precision_from_env(const Environment& environment) {
  const std::string text = environment.get_or(kMixedPrecision, "");
  if (text.empty()) return std::nullopt;
  TORCH_CHECK_VALUE(contains<PrecisionType>(text), kMixedPrecision, "=\"", text,
                    "\" is none of no, fp8, fp16, bf16");
  return from_string<PrecisionType>(text);
}

AcceleratorState& AcceleratorState::get(Runtime& runtime) {
  auto* state = runtime.find_shared<AcceleratorState>();
  TORCH_CHECK_VALUE(state != nullptr && state->initialized(),
                    "there is no AcceleratorState: make an Accelerator first");
  return *state;
}

void AcceleratorState::reset(Runtime& runtime, bool reset_partial_state) {
  if (auto* state = runtime.find_shared<AcceleratorState>()) state->record_.reset();
  if (reset_partial_state) PartialState::reset(runtime);
}

AcceleratorState& AcceleratorState::initialize(Runtime& runtime,
                                               const AcceleratorStateOptions& options) {
  PartialState& partial_state =
      PartialState::get(runtime, {.cpu = options.cpu, .init = options.init});
  auto& state = runtime.shared<AcceleratorState>(
      [&] { return std::unique_ptr<AcceleratorState>(new AcceleratorState(partial_state)); });
  if (!state.record_) {
    const auto precision = options.mixed_precision
                               ? options.mixed_precision
                               : mixed_precision_from_env(runtime.environment());
    ++state.generation_;
    state.record_.emplace(Record{.mixed_precision = precision.value_or(PrecisionType::kNo)});
  }
  const PrecisionType precision = state.record_->mixed_precision;
  TORCH_CHECK_VALUE(options.mixed_precision.value_or(precision) == precision,
                    "mixed_precision=", accelerate::to_string(*options.mixed_precision),
                    " contradicts an earlier Accelerator of this rank, which set ",
                    accelerate::to_string(precision));
  return state;
}

const AcceleratorState::Record& AcceleratorState::record() const {
  TORCH_CHECK_VALUE(record_,
                    "the state of this rank's Accelerators was reset; make an Accelerator before "
                    "it is asked");
  return *record_;
}

std::string AcceleratorState::to_string() const {
  std::ostringstream text;
  text << "Distributed environment: " << accelerate::to_string(distributed_type());
  if (!backend().empty()) text << ", backend " << backend();
  text << "\nNum processes: " << num_processes() << "\nProcess index: " << process_index()
       << "\nLocal process index: " << local_process_index() << "\nDevice: " << device()
       << "\nMixed precision type: " << accelerate::to_string(mixed_precision()) << '\n';
  return text.str();
}

}  // namespace accelerate
