#include "accelerate/state/partial_state.h"

#include <exception>
#include <memory>
#include <string>

#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/objects.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr char kForkLaunched[] = "FORK_LAUNCHED";
constexpr int kNoRank = -1;

DistributedType distributed_type_of(const std::string& family, int world_size) {
  if (family == "tpu") return DistributedType::kXla;
  if (world_size == 1) return DistributedType::kNo;
  const std::string text = absl::StrCat("MULTI_", absl::AsciiStrToUpper(family));
  TORCH_CHECK_VALUE(contains<DistributedType>(text), "no DistributedType for devices of family \"",
                    family, "\"");
  return from_string<DistributedType>(text);
}

// The first rank that failed, on every rank.
int first_failed(const ProcessGroupPtr& group, bool failed) {
  const int64_t ranks = group->getSize();
  const at::Tensor own = at::full({1}, failed ? ranks - group->getRank() : 0, at::kLong);
  const int64_t most = reduce_tensor(group, own, Reduction::kMax).item<int64_t>();
  return most == 0 ? kNoRank : static_cast<int>(ranks - most);
}

}  // namespace

// Ranks synchronise twice: when the first ones are through, and when all are.
OrderedScope::OrderedScope(ProcessGroupPtr group, bool is_first, const char* name)
    : group_(std::move(group)),
      is_first_(is_first),
      name_(name),
      exceptions_(std::uncaught_exceptions()) {
  if (group_ && !is_first_) synchronise(/*failed=*/false);
}

OrderedScope::~OrderedScope() noexcept(false) {
  if (!group_) return;
  const bool failed = std::uncaught_exceptions() > exceptions_;
  try {
    if (is_first_) synchronise(failed);
    if (!is_first_ || !failed) synchronise(failed);
  } catch (...) {
    if (!failed) throw;
  }
}

void OrderedScope::record_failure() { failure_ = exception_text(); }

void OrderedScope::synchronise(bool failed) {
  const int culprit = first_failed(group_, failed);
  if (culprit == kNoRank) return;
  const std::string text = broadcast_bytes(group_, failure_, culprit);
  if (failed) return;
  // The scope is over on all ranks: its end does not synchronise again.
  group_ = nullptr;
  C10_THROW_ERROR(DistBackendError,
                  c10::str("rank ", culprit, " left ", name_, " by ",
                           text.starts_with("an exception") ? text : "an error: " + text));
}

PartialState& PartialState::get(Runtime& runtime, const PartialStateOptions& options) {
  auto& state = runtime.shared<PartialState>(
      [&] { return std::unique_ptr<PartialState>(new PartialState(runtime)); });
  if (state.record_) {
    state.check_agrees(options);
  } else {
    state.record_ = make_record(runtime, options);
  }
  state.record_->fork_launched = parse_flag_from_env(kForkLaunched, false, runtime.environment());
  return state;
}

PartialState* PartialState::find(const Runtime& runtime) {
  auto* state = runtime.find_shared<PartialState>();
  return state != nullptr && state->initialized() ? state : nullptr;
}

void PartialState::reset(Runtime& runtime) {
  if (auto* state = runtime.find_shared<PartialState>()) state->record_.reset();
}

PartialState::Record PartialState::make_record(Runtime& runtime,
                                               const PartialStateOptions& options) {
  const int world_size = runtime.topology().world_size;
  if (options.init) check_init_method(*options.init, runtime.environment());
  Record record{.device = options.cpu ? c10::Device(c10::kCPU) : runtime.device(),
                .distributed_type =
                    distributed_type_of(options.cpu ? "cpu" : runtime.device_family(), world_size),
                .init = options.init.value_or(InitProcessGroupKwargs{}),
                .debug = parse_flag_from_env(env::kDebugMode, false, runtime.environment())};
  if (world_size == 1) return record;
  std::string backend = record.init.backend;
  if (backend.empty() && options.cpu) backend = runtime.cpu_backend();
  record.group_options = {
      .name = "world", .timeout = record.init.effective_timeout(), .backend = std::move(backend)};
  record.group = runtime.new_group(record.group_options);
  record.backend = record.group->getDefaultBackend()->getBackendName();
  return record;
}

void PartialState::check_agrees(const PartialStateOptions& options) const {
  TORCH_CHECK_VALUE(!options.cpu || device().is_cpu(),
                    "cpu=true, but this Runtime's state was made with the device ", device(),
                    "; make every Accelerator of a rank with the same options");
  const InitProcessGroupKwargs& init = record().init;
  TORCH_CHECK_VALUE(!options.init || *options.init == init, "InitProcessGroupKwargs",
                    json_text(to_dict(*options.init)),
                    " come too late: the process group was made with ", json_text(to_dict(init)),
                    "; give them to the first Accelerator");
}

bool PartialState::multi_device() const {
  const DistributedType type = distributed_type();
  return use_distributed() && type != DistributedType::kMultiCpu && type != DistributedType::kXla;
}

GroupOptions PartialState::group_options() const {
  GroupOptions options = record().group_options;
  options.name.clear();
  return options;
}

void PartialState::set_device() const {
  const c10::Device own = device();
  if (!own.is_cpu()) c10::impl::VirtualGuardImpl(own.type()).setDevice(own);
}

void PartialState::destroy_process_group(ProcessGroupPtr group) {
  if (!record_) return;
  Record& record = *record_;
  if (group && group != record.group) return;  // The caller's reference is the last of ours.
  if (!group && record.fork_launched) return;
  record.group_destroyed = record.group_destroyed || use_distributed();
  record.group.reset();
}

}  // namespace accelerate
