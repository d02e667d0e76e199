#include "accelerate/profiling/profiler.h"

#include <exception>
#include <optional>
#include <utility>

#include <ATen/record_function.h>

#include "absl/strings/str_cat.h"
#include "accelerate/profiling/chrome_trace.h"
#include "accelerate/profiling/kineto_session.h"
#include "accelerate/profiling/module_names.h"
#include "accelerate/profiling/operator_observer.h"

namespace accelerate {
namespace {

// Shared by all of a Runtime.
struct ProfiledRank {
  bool taken = false;
};

// The rank's, for a lifetime.
class RankClaim {
 public:
  explicit RankClaim(Runtime& runtime)
      : rank_(runtime.shared<ProfiledRank>([] { return std::make_shared<ProfiledRank>(); })) {
    TORCH_CHECK(!rank_.taken, "rank ", runtime.topology().rank,
                " is being profiled already: end that profiler before another begins");
    rank_.taken = true;
  }
  ~RankClaim() { release(); }
  RankClaim(const RankClaim&) = delete;
  RankClaim& operator=(const RankClaim&) = delete;
  void release() {
    if (!released_) rank_.taken = false;
    released_ = true;
  }

 private:
  ProfiledRank& rank_;
  bool released_ = false;
};

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

}  // namespace

class Profiler::Impl {
 public:
  Impl(PartialState& state, ProfileKwargs kwargs,
       std::vector<std::shared_ptr<torch::nn::Module>> modules)
      : state_(state),
        kwargs_((check(kwargs), std::move(kwargs))),
        modules_(std::move(modules)),
        claim_(state.runtime()) {
    enter(profile_action(kwargs_.schedule_option, 0));
    begin_step();
  }

  bool ended() const { return ended_; }
  bool unwinding() const { return std::uncaught_exceptions() > exceptions_; }
  int64_t step_num() const { return step_num_; }
  ProfileAction action() const { return action_; }
  const std::vector<ProfileEvent>& events() const { return events_; }

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
      claim_.release();
      if (kwargs_.output_trace_dir) {
        write(absl::StrCat(*kwargs_.output_trace_dir, "/", kProfileFilePrefix, rank(),
                           kProfileFileSuffix));
      }
    } catch (...) {
      error = std::current_exception();
    }
    claim_.release();
    try {
      if (kwargs_.output_trace_dir) state_.wait_for_everyone();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    if (error) std::rethrow_exception(error);
  }

  // The recording is lost: an exception is on its way.
  void abandon() {
    ended_ = true;
    step_scope_.reset();
    recording_ = false;
    kineto_.reset();
    observer_.reset();
  }

  void write(const std::string& path) {
    const absl::Status written = write_file(runtime().files(), path, trace_text());
    TORCH_CHECK(written.ok(), "rank ", rank(), " cannot write its trace: ", written.ToString());
  }

 private:
  Runtime& runtime() { return state_.runtime(); }
  int rank() { return runtime().topology().rank; }

  static bool records(std::optional<ProfileAction> action) {
    return action == ProfileAction::kRecord || action == ProfileAction::kRecordAndSave;
  }

  // From `action_` to the next, or to the end: what must stop, stops.
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
    if (records(next) && !recording_) start();
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
  RankClaim claim_;
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
  if (impl_->ended()) return;
  if (impl_->unwinding()) {
    impl_->abandon();
  } else {
    impl_->end(*this);
  }
}

void Profiler::step() { impl_->step(*this); }
int64_t Profiler::step_num() const { return impl_->step_num(); }
ProfileAction Profiler::current_action() const { return impl_->action(); }
void Profiler::end() { impl_->end(*this); }
const std::vector<ProfileEvent>& Profiler::events() const { return impl_->events(); }
EventAverages Profiler::key_averages(const KeyAverages& grouping) const {
  return EventAverages(impl_->events(), grouping);
}
void Profiler::export_chrome_trace(const std::string& path) { impl_->write(path); }

}  // namespace accelerate
