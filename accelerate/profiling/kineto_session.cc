#include "accelerate/profiling/kineto_session.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/temporary_folder.h"
#include "accelerate/profiling/chrome_trace.h"
#include "accelerate/profiling/operator_observer.h"

namespace accelerate {
namespace {

using torch::autograd::profiler::KinetoEvent;
using torch::autograd::profiler::ProfilerResult;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr char kMemoryEvent[] = "[memory]";

std::set<ActivityType> activities_of(const ProfileKwargs& kwargs, c10::Device device) {
  static const std::map<std::string, ActivityType> kByName = {
      {"cpu", ActivityType::CPU},         {"cuda", ActivityType::CUDA},
      {"hpu", ActivityType::PrivateUse1}, {"mtia", ActivityType::MTIA},
      {"xpu", ActivityType::XPU},
  };
  std::set<ActivityType> activities;
  for (const std::string& name : kwargs.activities) activities.insert(kByName.at(name));
  if (!activities.empty()) return activities;
  switch (device.type()) {
    case c10::kCUDA: return {ActivityType::CPU, ActivityType::CUDA};
    case c10::kXPU: return {ActivityType::CPU, ActivityType::XPU};
    case c10::kMTIA: return {ActivityType::CPU, ActivityType::MTIA};
    case c10::kPrivateUse1: return {ActivityType::CPU, ActivityType::PrivateUse1};
    default: return {ActivityType::CPU};
  }
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

// Parents come before their children, memory after the operator that began at the same time, and
// devices, whose parents are the operators that asked for them, last.
void sort_by_begin(std::vector<ProfileEvent>& events) {
  auto key = [](const ProfileEvent& event) {
    return std::make_tuple(event.kind == ProfileEvent::Kind::kDevice, event.start_ns,
                           event.kind == ProfileEvent::Kind::kMemory, event.id);
  };
  std::stable_sort(
      events.begin(), events.end(),
      [&key](const ProfileEvent& a, const ProfileEvent& b) { return key(a) < key(b); });
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
    // What ends before this one does not contain it, be it over or be it a scope ended out of turn.
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

}  // namespace

class KinetoSession::Impl {
 public:
  Impl(Runtime& runtime, const ProfileKwargs& kwargs, const ModuleNames& modules)
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

  ~Impl() {
    if (result_ != nullptr) return;
    try {
      // Kineto leaves its preparation only through a recording; the next session would fail.
      if (!running_) torch::autograd::profiler::enableProfiler(config_, activities_);
      torch::autograd::profiler::disableProfiler();
    } catch (const std::exception&) {
      // Somebody else has taken the one session there is; it is theirs now.
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

  std::vector<ProfileEvent> stop() {
    running_ = false;
    result_ = torch::autograd::profiler::disableProfiler();
    std::vector<ProfileEvent> events;
    for (const KinetoEvent& event : result_->events()) events.push_back(to_event(event));
    sort_by_begin(events);
    find_parents(events);
    if (observer_) {
      join(events, observer_->finish(), at::RecordFunction::currentThreadId());
      observer_.reset();
    }
    if (kwargs_.with_modules) spread_modules(events);
    for (const ProfileEvent& event : events) {
      if (event.kind == ProfileEvent::Kind::kDevice) continue;
      if (!event.module.empty() || !event.stack.empty()) {
        notes_.emplace(event.id, TraceNote{event.module, event.stack});
      }
    }
    return events;
  }

  std::string chrome_trace() {
    const TemporaryFolder folder;
    const std::string path = absl::StrCat(folder.path(), "/trace.json");
    result_->save(path);
    // Kineto only logs what went wrong.
    absl::StatusOr<std::string> text = read_file(runtime_.files(), path);
    TORCH_CHECK(text.ok() && is_whole_trace(*text), "rank ", runtime_.topology().rank,
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

KinetoSession::KinetoSession(Runtime& runtime, const ProfileKwargs& kwargs,
                             const ModuleNames& modules)
    : impl_(std::make_unique<Impl>(runtime, kwargs, modules)) {}
KinetoSession::~KinetoSession() = default;
void KinetoSession::start() { impl_->start(); }
std::vector<ProfileEvent> KinetoSession::stop() { return impl_->stop(); }
std::string KinetoSession::chrome_trace() { return impl_->chrome_trace(); }

}  // namespace accelerate
