#include "accelerate/profiling/operator_observer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <torch/csrc/profiler/util.h>
#include <torch/nn/module.h>

#include "absl/debugging/symbolize.h"
#include "absl/log/absl_check.h"
#include "absl/strings/match.h"

namespace accelerate {
namespace {

// A rank's thread counts as one; LibTorch's numbers depend on what ran before.
constexpr uint64_t kRankThread = 1;

bool is_users_object(absl::string_view path) {
  const absl::string_view file = path.substr(path.rfind('/') + 1);
  for (const char* prefix : {"libtorch", "libc10", "libabsl", "libc.", "libc-", "libstdc++",
                             "libgcc", "libpthread", "libm."}) {
    if (absl::StartsWith(file, prefix)) return false;
  }
  return true;
}

// Headers' templates are instantiated in the user's program.
bool is_users_function(absl::string_view name) {
  for (const char* prefix :
       {"c10::", "at::", "torch::", "std::", "void std::", "decltype", "_start", "__",
        "accelerate::internal::", "accelerate::(anonymous namespace)::call_stack",
        "accelerate::OperatorObserver"}) {
    if (absl::StartsWith(name, prefix)) return false;
  }
  return true;
}

std::string name_of(void* address) {
  Dl_info object;
  if (dladdr(address, &object) == 0 || object.dli_fname == nullptr) return "";
  if (!is_users_object(object.dli_fname)) return "";
  char name[1024];
  // The address is where the call returns to, which may be the next function's.
  if (!absl::Symbolize(static_cast<char*>(address) - 1, name, sizeof(name))) return "";
  return is_users_function(name) ? name : "";
}

// The C++ functions that led to an operator, without those of libraries: the return addresses,
// innermost function first.
//
// LibTorch's own profiler keeps no C++ frames. Return addresses are read from unwind tables and
// named from the symbol tables of the program and its libraries, so functions of a program that
// was stripped, or that were inlined, do not appear. There are no lines or files.
using CallStack = std::vector<void*>;

CallStack call_stack() {
  void* addresses[128];
  const int depth = backtrace(addresses, std::size(addresses));
  return CallStack(addresses, addresses + depth);  // braces would make a list of two pointers
}

// Names functions, without those of LibTorch, Abseil, the C and C++ libraries and this library's
// profiler; asks for each address once, and keeps the names in `known`, empty ones as well. It is
// slow, and meant for the end of a recording.
std::vector<std::string> names_of(const CallStack& stack, std::map<void*, std::string>& known) {
  std::vector<std::string> names;
  for (void* address : stack) {
    auto [found, is_new] = known.try_emplace(address);
    if (is_new) found->second = name_of(address);
    if (!found->second.empty()) names.push_back(found->second);
  }
  return names;
}

}  // namespace

// LibTorch keeps it alive with the state of threads; allocators report to it.
class OperatorObserver::Session final : public c10::MemoryReportingInfoBase {
 public:
  Session(Runtime& runtime, const OperatorObserverOptions& options)
      : runtime_(runtime), options_(options) {}

  void start() {
    ABSL_CHECK(current_ == nullptr) << "one observer at a time";
    current_ = this;
    if (options_.device_work) {
      runtime_.observe_device([this](const DeviceWork& work) { add_device_work(work); });
    }
    if (!options_.operators) return;
    callback_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&Session::on_begin, &Session::on_end)
            .needsInputs(options_.shapes || options_.flops || options_.modules != nullptr));
  }

  void stop() {
    current_ = nullptr;
    if (options_.device_work) runtime_.observe_device(nullptr);
    if (callback_) at::removeCallback(*callback_);
  }

  std::vector<ProfileEvent> take() {
    for (const size_t index : open_) events_[index].end_ns = now_ns();
    // Collectives are reported when their last member joins, in an order that varies.
    std::ranges::stable_sort(device_work_, {}, [](const ProfileEvent& event) {
      return std::pair(event.start_ns, event.thread);
    });
    for (ProfileEvent& work : device_work_) {
      work.id = events_.size() + 1;
      events_.push_back(std::move(work));
    }
    std::map<void*, std::string> known;
    for (const auto& [index, stack] : stacks_) events_[index].stack = names_of(stack, known);
    if (options_.modules != nullptr) propagate_modules(events_);
    return std::move(events_);
  }

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t total_allocated,
                         size_t total_reserved, c10::Device device) override {
    // Another thread of the rank reports through the state it inherited; its order is not ours.
    if (current_ != this || !at::isRecordFunctionEnabled()) return;
    if (device.is_cpu() && !is_own_host_memory(pointer, bytes)) return;
    const int64_t now = now_ns();
    // A device without a number is the rank's own.
    const int index = device.has_index() ? device.index() : runtime_.device().index();
    events_.push_back({.name = "[memory]",
                       .kind = ProfileEvent::Kind::kMemory,
                       .device_type = device.type(),
                       .device_index = std::max(index, 0),
                       .thread = kRankThread,
                       .start_ns = now,
                       .end_ns = now,
                       .parent = innermost(),
                       .bytes = bytes});
  }

  bool memoryProfilingEnabled() const override { return options_.memory; }

 private:
  struct Context final : at::ObserverContext {
    Context(Session* session, size_t index) : session(session), index(index) {}
    Session* const session;
    const size_t index;
  };

  static std::unique_ptr<at::ObserverContext> on_begin(const at::RecordFunction& function) {
    Session* session = current_;
    if (session == nullptr) return nullptr;
    return std::make_unique<Context>(session, session->begin(function));
  }

  static void on_end(const at::RecordFunction&, at::ObserverContext* context) {
    auto* began = static_cast<Context*>(context);
    if (began != nullptr && began->session == current_) began->session->end(began->index);
  }

  size_t begin(const at::RecordFunction& function) {
    const size_t index = events_.size();
    const int64_t now = now_ns();
    ProfileEvent& event = events_.emplace_back();
    event = {.name = function.name(),
             .kind = event_kind(function.scope(), function.name()),
             .thread = kRankThread,
             .start_ns = now,
             .end_ns = now,
             .parent = innermost(),
             .id = index + 1,
             .sequence_nr = function.seqNr()};
    if (options_.shapes) {
      event.shapes = torch::profiler::impl::inputSizes(function);
      event.types = torch::profiler::impl::inputTypes(function);
    }
    if (options_.flops) {
      event.flops = torch::profiler::impl::computeFlops(
          event.name, torch::profiler::impl::saveExtraArgs(function));
    }
    if (options_.modules != nullptr) event.module = module_of(function);
    if (options_.stack) stacks_.emplace_back(index, call_stack());
    open_.push_back(index);
    return index;
  }

  void add_device_work(const DeviceWork& work) {
    device_work_.push_back({.name = work.name,
                            .kind = ProfileEvent::Kind::kDevice,
                            .device_type = work.device.type(),
                            .device_index = work.device.has_index() ? work.device.index() : 0,
                            .thread = static_cast<uint64_t>(work.stream),
                            .start_ns = absl::ToUnixNanos(work.start),
                            .end_ns = absl::ToUnixNanos(work.end),
                            .parent = work.from_operator ? innermost() : std::nullopt});
  }

  // LibTorch's table of host allocations is the process's: it may hold what was freed while no
  // rank was profiled, so whether it tells of a free of older memory depends on addresses.
  bool is_own_host_memory(void* pointer, int64_t bytes) {
    if (bytes < 0) return host_memory_.erase(pointer) == 1;
    host_memory_.insert(pointer);
    return true;
  }

  // Scopes that a user opened may end out of turn.
  void end(size_t index) {
    events_[index].end_ns = now_ns();
    std::erase(open_, index);
  }

  const std::string& module_of(const at::RecordFunction& function) const {
    static const std::string kNone;
    for (const c10::IValue& input : function.inputs()) {
      if (!input.isTensor()) continue;
      const std::string& name = options_.modules->of(input.toTensor());
      if (!name.empty()) return name;
    }
    return kNone;
  }

  std::optional<size_t> innermost() const {
    return open_.empty() ? std::nullopt : std::optional(open_.back());
  }

  int64_t now_ns() const { return absl::ToUnixNanos(runtime_.now()); }

  static inline thread_local Session* current_ = nullptr;

  Runtime& runtime_;
  const OperatorObserverOptions options_;
  std::optional<at::CallbackHandle> callback_;
  std::vector<ProfileEvent> events_;
  std::vector<ProfileEvent> device_work_;
  std::unordered_set<void*> host_memory_;  // allocated under this observer, not yet freed
  std::vector<size_t> open_;               // outermost first
  std::vector<std::pair<size_t, CallStack>> stacks_;
};

OperatorObserver::OperatorObserver(Runtime& runtime, const OperatorObserverOptions& options)
    : session_(std::make_shared<Session>(runtime, options)) {
  session_->start();
  if (options.memory) {
    memory_reports_ =
        std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, session_);
  }
}

OperatorObserver::~OperatorObserver() { finish(); }

std::vector<ProfileEvent> OperatorObserver::finish() {
  if (session_ == nullptr) return {};
  memory_reports_.reset();
  session_->stop();
  return std::exchange(session_, nullptr)->take();
}

ProfileEvent::Kind event_kind(at::RecordScope scope, absl::string_view name) {
  if (scope == at::RecordScope::USER_SCOPE) return ProfileEvent::Kind::kAnnotation;
  // The engine's call of a node is in the scope of functions, the node itself is not.
  if (scope == at::RecordScope::BACKWARD_FUNCTION ||
      absl::StartsWith(name, "autograd::engine::evaluate_function")) {
    return ProfileEvent::Kind::kBackward;
  }
  return ProfileEvent::Kind::kOperator;
}

void propagate_modules(std::vector<ProfileEvent>& events) {
  std::unordered_map<int64_t, std::string> by_sequence_nr;
  for (ProfileEvent& event : events) {
    if (event.kind == ProfileEvent::Kind::kMemory) continue;
    if (event.kind == ProfileEvent::Kind::kBackward) {
      const auto found = by_sequence_nr.find(event.sequence_nr);
      if (found != by_sequence_nr.end()) event.module = found->second;
    }
    if (event.module.empty() && event.parent) event.module = events[*event.parent].module;
    // An operator that is not differentiated has the number of the next one that is.
    if (event.kind == ProfileEvent::Kind::kOperator && event.sequence_nr >= 0) {
      by_sequence_nr[event.sequence_nr] = event.module;
    }
  }
}

ModuleNames::ModuleNames(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  for (const auto& root : modules) {
    for (const auto& module : root->named_modules()) {
      const std::string& name = module.key().empty() ? module.value()->name() : module.key();
      auto remember = [&](const at::Tensor& tensor) {
        if (!tensor.defined()) return;
        name_by_tensor_.try_emplace(tensor.unsafeGetTensorImpl(), name);
        if (tensor.has_storage()) {
          name_by_storage_.try_emplace(tensor.storage().unsafeGetStorageImpl(), name);
        }
      };
      for (const at::Tensor& tensor : module.value()->parameters(/*recurse=*/false)) {
        remember(tensor);
      }
      for (const at::Tensor& tensor : module.value()->buffers(/*recurse=*/false)) remember(tensor);
    }
  }
}

const std::string& ModuleNames::of(const at::Tensor& tensor) const {
  static const std::string kNone;
  if (!tensor.defined()) return kNone;
  const auto by_tensor = name_by_tensor_.find(tensor.unsafeGetTensorImpl());
  if (by_tensor != name_by_tensor_.end()) return by_tensor->second;
  if (!tensor.has_storage()) return kNone;
  const auto by_storage = name_by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  return by_storage == name_by_storage_.end() ? kNone : by_storage->second;
}

}  // namespace accelerate
