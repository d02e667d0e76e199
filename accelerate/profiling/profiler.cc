#include "accelerate/profiling/profiler.h"

#include <algorithm>
#include <exception>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/constants.h"
#include "accelerate/base/json_text.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/profiling/operator_observer.h"
#include "accelerate/profiling/recording.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate {
namespace {

// One for each Runtime.
struct ProfiledRank {
  std::weak_ptr<const void> profiler;
};

// Holds the rank for one profiler.
std::shared_ptr<const void> claim(Runtime& runtime) {
  ProfiledRank& rank =
      runtime.shared<ProfiledRank>([] { return std::make_shared<ProfiledRank>(); });
  TORCH_CHECK(rank.profiler.expired(), "rank ", runtime.topology().rank,
              " is being profiled already: end that profiler before another begins");
  const auto held = std::make_shared<const bool>(true);
  rank.profiler = held;
  return held;
}

OperatorObserverOptions observer_options(const ProfileKwargs& kwargs, const ModuleNames& modules) {
  const bool all = kwargs.activities.empty();
  const bool cpu = kwargs.activities.contains("cpu");
  return {.operators = all || cpu,
          .device_work = all || kwargs.activities.size() > (cpu ? 1 : 0),
          .shapes = kwargs.record_shapes,
          .memory = kwargs.profile_memory,
          .flops = kwargs.with_flops,
          .stack = kwargs.with_stack,
          .modules = kwargs.with_modules ? &modules : nullptr};
}

using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr char kMemoryEvent[] = "[memory]";

// Those that are asked for; without any, the CPU's and the device's.
std::set<ActivityType> activities_of(const ProfileKwargs& kwargs, c10::Device device) {
  static constexpr std::tuple<const char*, c10::DeviceType, ActivityType> kActivities[] = {
      {"cpu", c10::kCPU, ActivityType::CPU},
      {"cuda", c10::kCUDA, ActivityType::CUDA},
      {"hpu", c10::kPrivateUse1, ActivityType::PrivateUse1},
      {"mtia", c10::kMTIA, ActivityType::MTIA},
      {"xpu", c10::kXPU, ActivityType::XPU}};
  std::set<ActivityType> activities;
  for (const auto& [name, type, activity] : kActivities) {
    const bool is_usual = type == c10::kCPU || type == device.type();
    if (kwargs.activities.empty() ? is_usual : kwargs.activities.contains(name)) {
      activities.insert(activity);
    }
  }
  return activities;
}

ProfileEvent::Kind kind_of(const KinetoEvent& event) {
  if (event.name() == kMemoryEvent) return ProfileEvent::Kind::kMemory;
  if (event.deviceType() != c10::kCPU) return ProfileEvent::Kind::kDevice;
  return event_kind(static_cast<at::RecordScope>(event.scope()), event.name());
}

ProfileEvent to_event(const KinetoEvent& from) {
  ProfileEvent event;
  event.name = from.name();
  event.kind = kind_of(from);
  event.device_type = from.deviceType();
  event.device_index = std::max(from.deviceIndex(), 0);
  const bool on_device = event.kind == ProfileEvent::Kind::kDevice;
  event.thread = on_device ? static_cast<uint64_t>(from.deviceResourceId()) : from.startThreadId();
  event.start_ns = static_cast<int64_t>(from.startNs());
  event.end_ns = static_cast<int64_t>(from.endNs());
  event.id = on_device ? from.linkedCorrelationId() : from.correlationId();
  event.sequence_nr = from.sequenceNr();
  if (from.hasShapes()) event.shapes = from.shapes().vec();
  if (from.hasTypes()) event.types = from.dtypes().vec();
  event.flops = from.flops();
  if (event.kind == ProfileEvent::Kind::kMemory) event.bytes = from.nBytes();
  return event;
}

void find_parents(std::vector<ProfileEvent>& events) {
  std::unordered_map<uint64_t, std::vector<size_t>> open_by_thread;
  std::unordered_map<uint64_t, size_t> index_by_id;
  for (size_t i = 0; i < events.size(); ++i) {
    ProfileEvent& event = events[i];
    if (event.kind == ProfileEvent::Kind::kDevice) {
      const auto found = index_by_id.find(event.id);
      if (found != index_by_id.end()) event.parent = found->second;
      continue;
    }
    std::vector<size_t>& open = open_by_thread[event.thread];
    // An event that ends before this one does not contain it, be it over or be it a scope ended out
    // of turn.
    while (!open.empty() && events[open.back()].end_ns < event.end_ns) open.pop_back();
    if (!open.empty()) event.parent = open.back();
    if (event.kind == ProfileEvent::Kind::kMemory) continue;
    open.push_back(i);
    index_by_id.emplace(event.id, i);
  }
}

// Each call on the observer's thread was seen by both, in the same order.
void join(std::vector<ProfileEvent>& events, std::vector<ProfileEvent> observed, uint64_t thread) {
  auto next = observed.begin();
  for (ProfileEvent& event : events) {
    if (event.thread != thread || event.kind == ProfileEvent::Kind::kMemory ||
        event.kind == ProfileEvent::Kind::kDevice) {
      continue;
    }
    // LibTorch adds events of its own making, which no observer sees.
    if (next == observed.end() || next->name != event.name) continue;
    event.module = std::move(next->module);
    event.stack = std::move(next->stack);
    ++next;
  }
}

/// A recording of LibTorch's own profiler, Kineto, which every build of LibTorch 2 has.
///
/// It sees the operators of all threads that the recording thread starts, and kernels where
/// LibTorch was built with a vendor's tracing library. A process has one session: a second one, on
/// any thread, would end the first and lose it. Kineto keeps no C++ stacks and no modules; an
/// OperatorObserver beside it sees those of the rank's thread, and both are joined, call by call.
/// Errors: c10::Error if another session runs.
/// Threads: one.
class KinetoSession {
 public:
  // Prepares the session; nothing is recorded yet. The arguments must outlive it.
  KinetoSession(Runtime& runtime, const ProfileKwargs& kwargs, const ModuleNames& modules)
      : runtime_(runtime),
        kwargs_(kwargs),
        modules_(modules),
        activities_(activities_of(kwargs, runtime.device())),
        config_(ProfilerState::KINETO, kwargs.record_shapes, kwargs.profile_memory,
                kwargs.with_stack, kwargs.with_flops, kwargs.with_modules) {
    TORCH_CHECK(!torch::autograd::profiler::isProfilerEnabledInMainThread() &&
                    !torch::profiler::impl::profilerEnabled(),
                "rank ", runtime.topology().rank,
                " cannot be profiled: LibTorch's profiler, of which a process has one, runs "
                "already");
    torch::autograd::profiler::prepareProfiler(config_, activities_);
  }

  // Drops the recording.
  ~KinetoSession() {
    if (result_ != nullptr) return;
    try {
      // Kineto leaves its preparation only through a recording; the next session would fail.
      if (!running_) torch::autograd::profiler::enableProfiler(config_, activities_);
      torch::autograd::profiler::disableProfiler();
    } catch (const std::exception&) {
      // Another user of LibTorch has taken the process's one session.
    }
  }

  void start() {
    if (kwargs_.with_modules || kwargs_.with_stack) {
      observer_.emplace(
          runtime_, OperatorObserverOptions{.stack = kwargs_.with_stack,
                                            .modules = kwargs_.with_modules ? &modules_ : nullptr});
    }
    torch::autograd::profiler::enableProfiler(config_, activities_);
    running_ = true;
  }

  // Ends the recording. Operators of one thread are in the order in which they began.
  std::vector<ProfileEvent> stop() {
    running_ = false;
    result_ = torch::autograd::profiler::disableProfiler();
    std::vector<ProfileEvent> events;
    for (const KinetoEvent& event : result_->events()) events.push_back(to_event(event));
    // Parents come before their children, memory after the operator that began at the same time,
    // and devices, whose parents are the operators that asked for them, last.
    std::ranges::stable_sort(events, {}, [](const ProfileEvent& event) {
      return std::make_tuple(event.kind == ProfileEvent::Kind::kDevice, event.start_ns,
                             event.kind == ProfileEvent::Kind::kMemory, event.id);
    });
    find_parents(events);
    if (observer_) {
      join(events, observer_->finish(), at::RecordFunction::currentThreadId());
      observer_.reset();
    }
    if (kwargs_.with_modules) propagate_modules(events);
    for (const ProfileEvent& event : events) {
      if (event.kind == ProfileEvent::Kind::kDevice) continue;
      if (!event.module.empty() || !event.stack.empty()) {
        notes_.emplace(event.id, TraceNote{event.module, event.stack});
      }
    }
    return events;
  }

  // After stop(): Kineto's trace in Chrome's format, with the rank as the process's name and
  // modules and stacks beside operators. Errors: c10::Error if Kineto could not write it.
  std::string chrome_trace() {
    const TemporaryFolder folder;
    const std::string path = absl::StrCat(folder.path(), "/trace.json");
    result_->save(path);
    // Kineto only logs what went wrong.
    absl::StatusOr<std::string> text = read_file(runtime_.files(), path);
    TORCH_CHECK(text.ok() && internal::is_json(*text), "rank ", runtime_.topology().rank,
                ": LibTorch could not write its trace into ", folder.path());
    return label_kineto_trace(*text, runtime_.topology(), notes_);
  }

 private:
  Runtime& runtime_;
  const ProfileKwargs& kwargs_;
  const ModuleNames& modules_;
  const std::set<ActivityType> activities_;
  const ProfilerConfig config_;
  bool running_ = false;
  std::optional<OperatorObserver> observer_;
  std::unique_ptr<ProfilerResult> result_;
  TraceNotes notes_;
};

}  // namespace

class Profiler::Impl {
 public:
  Impl(PartialState& state, ProfileKwargs kwargs,
       std::vector<std::shared_ptr<torch::nn::Module>> modules)
      : state_(state),
        kwargs_((check(kwargs), std::move(kwargs))),
        modules_(std::move(modules)),
        claim_(claim(state.runtime())) {
    enter(profile_action(kwargs_.schedule_option, 0));
    begin_step();
  }

  void step(Profiler& self) {
    TORCH_CHECK(!ended_, "rank ", rank(), ": Profiler::step() after its end");
    step_scope_.reset();
    const ProfileAction next = profile_action(kwargs_.schedule_option, ++step_num_);
    leave(next, self);
    enter(next);
    begin_step();
  }

  void end(Profiler& self) {
    if (std::exchange(ended_, true)) return;
    step_scope_.reset();
    std::exception_ptr error;
    try {
      leave(std::nullopt, self);
      claim_.reset();
      if (kwargs_.output_trace_dir) {
        write(absl::StrCat(*kwargs_.output_trace_dir, "/",
                           with_suffix(kProfilePatternName, absl::StrCat(rank()))));
      }
    } catch (...) {
      error = std::current_exception();
    }
    claim_.reset();
    try {
      if (kwargs_.output_trace_dir) state_.wait_for_everyone();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (error) std::rethrow_exception(error);
  }

  // Drops the recording, because an exception is being handled.
  void abandon() {
    ended_ = true;
    step_scope_.reset();
    recording_ = false;
    kineto_.reset();
    observer_.reset();
  }

  void write(const std::string& path) {
    const absl::Status written = write_file(lasting_files(runtime()), path, trace_text());
    TORCH_CHECK(written.ok(), "rank ", rank(), " cannot write its trace: ", written.ToString());
  }

 private:
  friend class Profiler;

  Runtime& runtime() { return state_.runtime(); }
  int rank() { return runtime().topology().rank; }

  // Stops what must stop between `action_` and the next action, or the end.
  void leave(std::optional<ProfileAction> next, Profiler& self) {
    const bool cycle_ends = recording_ && (action_ == ProfileAction::kRecordAndSave || !next);
    if (cycle_ends) {
      stop();
      if (kwargs_.on_trace_ready) kwargs_.on_trace_ready(self);
    } else if (!next) {
      kineto_.reset();  // warmed up for nothing
    }
  }

  void enter(ProfileAction next) {
    action_ = next;
    if (next == ProfileAction::kNone) return;
    if (!ready_) prepare();
    if (next != ProfileAction::kWarmup && !recording_) start();
  }

  void prepare() {
    if (kwargs_.with_modules) names_ = ModuleNames(modules_);
    if (runtime().owns_process()) {
      last_kineto_.reset();  // its trace is of the last cycle, and there is one session only
      kineto_ = std::make_unique<KinetoSession>(runtime(), kwargs_, names_);
    }
    ready_ = true;
  }

  void start() {
    if (kineto_ != nullptr) {
      kineto_->start();
    } else {
      observer_.emplace(runtime(), observer_options(kwargs_, names_));
    }
    recording_ = true;
  }

  void stop() {
    recording_ = ready_ = false;
    trace_text_.reset();
    if (kineto_ != nullptr) {
      events_ = kineto_->stop();
      last_kineto_ = std::move(kineto_);
    } else {
      events_ = observer_->finish();
      observer_.reset();
    }
  }

  // A trace shows its steps.
  void begin_step() {
    if (!kwargs_.schedule_option || !recording_) return;
    step_scope_.emplace(at::RecordScope::USER_SCOPE);
    if (step_scope_->isActive()) step_scope_->before(absl::StrCat("ProfilerStep#", step_num_));
  }

  // LibTorch gives its trace once only.
  const std::string& trace_text() {
    if (!trace_text_) {
      trace_text_ = last_kineto_ != nullptr ? last_kineto_->chrome_trace()
                                            : chrome_trace(events_, runtime().topology());
    }
    return *trace_text_;
  }

  PartialState& state_;
  const ProfileKwargs kwargs_;
  const std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::shared_ptr<const void> claim_;
  const int exceptions_ = std::uncaught_exceptions();
  ModuleNames names_;
  ProfileAction action_ = ProfileAction::kNone;
  int64_t step_num_ = 0;
  bool ready_ = false;
  bool recording_ = false;
  bool ended_ = false;
  std::unique_ptr<KinetoSession> kineto_;       // of the present cycle
  std::unique_ptr<KinetoSession> last_kineto_;  // of the recording that ended last
  std::optional<OperatorObserver> observer_;
  std::optional<at::RecordFunction> step_scope_;
  std::vector<ProfileEvent> events_;
  std::optional<std::string> trace_text_;
};

Profiler::Profiler(PartialState& state, ProfileKwargs kwargs,
                   std::vector<std::shared_ptr<torch::nn::Module>> modules)
    : impl_(std::make_unique<Impl>(state, std::move(kwargs), std::move(modules))) {}

Profiler::~Profiler() noexcept(false) {
  if (impl_->ended_) return;
  if (std::uncaught_exceptions() > impl_->exceptions_) {
    impl_->abandon();
  } else {
    impl_->end(*this);
  }
}

void Profiler::step() { impl_->step(*this); }
int64_t Profiler::step_num() const { return impl_->step_num_; }
ProfileAction Profiler::current_action() const { return impl_->action_; }
void Profiler::end() { impl_->end(*this); }
const std::vector<ProfileEvent>& Profiler::events() const { return impl_->events_; }
EventAverages Profiler::key_averages(const KeyAverages& grouping) const {
  return EventAverages(impl_->events_, grouping);
}
void Profiler::export_chrome_trace(const std::string& path) { impl_->write(path); }

ProfileAction profile_action(const std::optional<ProfileSchedule>& schedule, int64_t step) {
  if (!schedule) return ProfileAction::kRecord;
  if (step < schedule->skip_first) return ProfileAction::kNone;
  const int64_t length = schedule->wait + schedule->warmup + schedule->active;
  const int64_t cycle = (step - schedule->skip_first) / length;
  const int64_t position = (step - schedule->skip_first) % length;
  if (schedule->repeat > 0 && cycle >= schedule->repeat) return ProfileAction::kNone;
  if (position < schedule->wait) return ProfileAction::kNone;
  if (position < schedule->wait + schedule->warmup) return ProfileAction::kWarmup;
  return position + 1 < length ? ProfileAction::kRecord : ProfileAction::kRecordAndSave;
}

}  // namespace accelerate
