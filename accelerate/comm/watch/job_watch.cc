#include "accelerate/comm/watch/job_watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/watch/rank_dump.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr char kAlarmKey[] = "accelerate/watch/alarm";
constexpr char kReportKey[] = "accelerate/watch/report";
// The length of one blocking wait of the helper thread. Its key or the end of the store wakes it
// earlier; c10d writes to the console when such a wait times out.
constexpr std::chrono::hours kListenSlice(24);
// One grace for the collecting rank, and another for the report to arrive.
constexpr int kGracesForReport = 2;
constexpr int kGracesToGiveUp = 3;
// How often a rank looks at its latest operation while it is patient.
constexpr int kLooks = 3;
// How often the rank that asks looks for answers. A wait of c10d that times out would write to the
// console.
constexpr std::chrono::milliseconds kAnswerSlice(20);

std::string log_key(int rank) { return absl::StrCat("accelerate/watch/log/", rank); }
std::string answer_key(int rank) { return absl::StrCat("accelerate/watch/answer/", rank); }
std::string wake_key(int rank) { return absl::StrCat("accelerate/watch/wake/", rank); }

Bytes to_bytes(const std::string& text) { return Bytes(text.begin(), text.end()); }

// Whether all keys are there in time. Errors: those of a broken store.
bool wait_for_keys(c10d::Store& store, const std::vector<std::string>& keys,
                   std::chrono::milliseconds timeout) {
  try {
    store.wait(keys, timeout);
    return true;
  } catch (const c10::DistNetworkError&) {
    throw;
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

}  // namespace

// All store traffic is on threads of its own, so that a silent store blocks no caller.
class JobWatch::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Options options) : options_(std::move(options)), log_(options_.rank) {}

  OperationLog& log() { return log_; }
  const std::atomic<bool>& failed() const { return failed_; }

  std::string report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }

  // The helper thread.
  void listen() {
    try {
      const c10::intrusive_ptr<c10d::Store> store = options_.connect();
      while (!stopping()) {
        if (!wait_for_keys(*store, {wake_key(options_.rank)}, kListenSlice) || stopping()) continue;
        if (!store->check({kAlarmKey})) answer_question(*store);
        // One that was raised while this rank answered: its waking may be gone.
        if (!store->check({kAlarmKey})) continue;
        answer_alarm(*store);
        break;
      }
    } catch (const std::exception&) {
      // The store is gone, so that no rank can raise an alarm or answer it.
    }
    const std::lock_guard lock(mutex_);
    listening_ = false;
    changed_.notify_all();
  }

  // The observing thread.
  void observe() {
    uint64_t ticket = 0;
    int looks = 0;  // after the first, at the same operation
    std::unique_lock lock(mutex_);
    const auto is_over = [this] { return stopping_ || !report_.empty(); };
    const std::chrono::milliseconds pause = absl::ToChronoMilliseconds(options_.patience) / kLooks;
    while (!changed_.wait_for(lock, pause, is_over)) {
      const std::optional<PendingOperation> pending = log_.pending();
      looks = pending && pending->ticket == ticket ? looks + 1 : 0;
      if (pending) ticket = pending->ticket;
      if (pending && looks == kLooks) say_who_is_behind(*pending, lock);
    }
    observing_ = false;
    changed_.notify_all();
  }

  std::string fail(const OperationFailure& failure) {
    std::string trouble = "no report came in time";
    const char* unreachable =
        "the job's store, which rank 0 serves, does not answer: rank 0 is gone or unreachable";
    std::unique_lock lock(mutex_);
    if (!report_.empty()) return report_;
    if (!std::exchange(raised_, true)) {
      request([failure](State& state, c10d::Store& store) {
        state.raise_alarm(store, failure, /*explained=*/false);
      });
    }
    changed_.wait_for(lock, grace() * kGracesToGiveUp, [this] {
      return !report_.empty() || !listening_ || request_ == Request::kFailed;
    });
    if (!report_.empty()) return report_;
    if (request_ != Request::kDone || (!listening_ && !stopping_)) trouble = unreachable;
    lock.unlock();
    set_report(absl::StrCat(operation_report(failure, {log_.snapshot()}), "\n", trouble));
    return report();
  }

  void fail_explained(const OperationFailure& failure) {
    {
      std::unique_lock lock(mutex_);
      if (!report_.empty() || std::exchange(raised_, true)) return;
      request([failure](State& state, c10d::Store& store) {
        state.raise_alarm(store, failure, /*explained=*/true);
      });
      wait_for_request(lock);
    }
    set_report(failure.reason);
  }

  std::shared_ptr<void> on_failure(Interrupt interrupt) {
    auto shared = std::make_shared<Interrupt>(std::move(interrupt));
    {
      const std::lock_guard lock(mutex_);
      if (report_.empty()) {
        std::erase_if(interrupts_, [](const auto& weak) { return weak.expired(); });
        interrupts_.push_back(shared);
        return shared;
      }
    }
    (*shared)();
    return shared;
  }

  void end(const std::string& how) {
    log_.end(how);
    std::unique_lock lock(mutex_);
    request([](State& state, c10d::Store& store) { state.publish_log(store); });
    wait_for_request(lock);
  }

  // Returns whether the threads have ended, or are about to.
  bool stop() {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (listening_) {
      request([](State& state, c10d::Store& store) {
        store.set(wake_key(state.options_.rank), std::string("end"));
      });
    }
    return changed_.wait_for(lock, grace(), [this] { return !listening_ && !observing_; });
  }

 private:
  enum class Request { kPending, kDone, kFailed };

  // Why an operation lasts.
  struct HeldUp {
    std::string behind;
    std::string differs;
    std::string crossed;
  };

  std::chrono::milliseconds grace() const { return absl::ToChronoMilliseconds(options_.grace); }

  bool stopping() const {
    const std::lock_guard lock(mutex_);
    return stopping_;
  }

  // Runs `what` on a connection of its own, in a thread of its own. \pre mutex_ is held.
  void request(std::function<void(State&, c10d::Store&)> what) {
    request_ = Request::kPending;
    std::thread([self = shared_from_this(), what = std::move(what)] {
      Request how = Request::kFailed;
      try {
        const std::lock_guard one_at_a_time(self->one_request_);
        if (!self->request_store_) self->request_store_ = self->options_.connect();
        what(*self, *self->request_store_);
        how = Request::kDone;
      } catch (const std::exception&) {
        // The store is gone; the caller sees kFailed.
      }
      const std::lock_guard lock(self->mutex_);
      self->request_ = how;
      self->changed_.notify_all();
    }).detach();
  }

  void wait_for_request(std::unique_lock<std::mutex>& lock) {
    changed_.wait_for(lock, grace(), [this] { return request_ != Request::kPending; });
  }

  // Asks the group's other members for their positions. A thread that waits for a silent store is
  // detached.
  // \pre `lock` holds mutex_.
  void say_who_is_behind(const PendingOperation& pending, std::unique_lock<std::mutex>& lock) {
    struct Answer {
      bool is_there = false;
      HeldUp held_up;
    };
    const auto answer = std::make_shared<Answer>();
    std::thread([self = shared_from_this(), answer, pending] {
      HeldUp held_up;
      try {
        held_up = self->ask(*self->options_.connect(), pending);
      } catch (const std::exception&) {
        // The store is gone: operations are about to fail.
      }
      const std::lock_guard lock(self->mutex_);
      *answer = {.is_there = true, .held_up = std::move(held_up)};
      self->changed_.notify_all();
    }).detach();
    changed_.wait_for(lock, grace() * kGracesToGiveUp,
                      [&] { return answer->is_there || stopping_ || !report_.empty(); });
    if (stopping_ || !report_.empty()) return;
    if (!answer->is_there && is_first_after_rank_0(pending)) {
      answer->held_up.behind = "rank 0: does not answer, nor does the job's store, which it serves";
    }
    const auto& [behind, differs, crossed] = answer->held_up;
    if (options_.fails_crossed && !crossed.empty()) {
      lock.unlock();
      fail({.reason = crossed, .group = pending.group, .ranks = pending.ranks});
      lock.lock();
      return;
    }
    if (behind.empty() && differs.empty()) return;
    const std::string line =
        absl::StrCat("accelerate: rank ", options_.rank, " has waited for more than ",
                     absl::FormatDuration(options_.patience), " in ", pending.text, " of group \"",
                     pending.group, "\"", behind.empty() ? "" : "; behind: ", behind,
                     differs.empty() ? "" : "; ", differs, "\n");
    lock.unlock();
    if (options_.say) {
      options_.say(line);
    } else {
      std::cerr << line << std::flush;
    }
    lock.lock();
  }

  bool is_first_after_rank_0(const PendingOperation& pending) const {
    return std::ranges::none_of(pending.ranks,
                                [&](int rank) { return rank > 0 && rank < options_.rank; });
  }

  // Who is behind, which call differs, and which ranks wait for each other: empty if no rank is or
  // does, or if another rank asks for this operation or tells of the call; the first one also if
  // this rank is behind itself.
  HeldUp ask(c10d::Store& store, const PendingOperation& pending) const {
    const auto is_first_for = [&](absl::string_view what) {
      const Bytes mine = to_bytes(absl::StrCat(options_.rank));
      const std::string claim = absl::StrCat("accelerate/watch/asked/", pending.group, "/", what);
      return store.compareSet(claim, {}, mine) == mine;
    };
    if (!is_first_for(pending.text)) return {};
    std::vector<int> others = pending.ranks;
    std::erase(others, options_.rank);
    for (int rank : others) {
      store.deleteKey(answer_key(rank));
      store.set(wake_key(rank), std::string("question"));
    }
    std::vector<OperationHistory> histories = {log_.snapshot()};
    const auto deadline = std::chrono::steady_clock::now() + grace();
    while (!others.empty() && std::chrono::steady_clock::now() < deadline) {
      std::erase_if(others, [&](int rank) {
        if (!store.check({answer_key(rank)})) return false;
        read_history(store.get(answer_key(rank)), histories);
        return true;
      });
      if (!others.empty()) std::this_thread::sleep_for(kAnswerSlice);
    }
    const OperationFailure group{.reason = "", .group = pending.group, .ranks = pending.ranks};
    HeldUp held_up{.behind = ranks_behind(group, histories, options_.rank),
                   .differs = differing_calls(group, histories),
                   .crossed = crossed_groups(histories)};
    // Members that made another call ask, too; the call has one number.
    const std::string call = held_up.differs.substr(0, held_up.differs.find(": "));
    if (!call.empty() && !is_first_for(call)) held_up.differs.clear();
    return held_up;
  }

  void answer_question(c10d::Store& store) const {
    store.set(answer_key(options_.rank), json_text(to_dict(log_.snapshot())));
    store.deleteKey(wake_key(options_.rank));
  }

  static void read_history(const Bytes& bytes, std::vector<OperationHistory>& histories) {
    const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    internal::read_fields(internal::parse_ordered_json(text), "a rank's operation history",
                          histories.emplace_back());
  }

  void answer_alarm(c10d::Store& store) {
    publish_log(store);
    const nlohmann::ordered_json alarm = internal::parse_ordered_json(store.get_to_str(kAlarmKey));
    const OperationFailure failure{
        .reason = alarm.at("reason"), .group = alarm.at("group"), .ranks = alarm.at("ranks")};
    if (alarm.at("explained")) {
      set_report(failure.reason);
    } else if (alarm.at("rank") == options_.rank) {
      const std::string report = collect_report(store, failure);
      store.set(kReportKey, report);
      set_report(report);
    } else if (wait_for_keys(store, {kReportKey}, grace() * kGracesForReport)) {
      set_report(store.get_to_str(kReportKey));
    } else {
      set_report(collect_report(store, failure));
    }
  }

  void publish_log(c10d::Store& store) const {
    store.set(log_key(options_.rank), json_text(to_dict(log_.snapshot())));
  }

  std::string collect_report(c10d::Store& store, const OperationFailure& failure) const {
    std::vector<std::string> keys;
    for (int rank : failure.ranks) keys.push_back(log_key(rank));
    if (!wait_for_keys(store, keys, grace())) {
      // The report names the missing ranks.
      std::erase_if(keys, [&](const std::string& key) { return !store.check({key}); });
    }
    std::vector<OperationHistory> histories;
    if (!keys.empty()) {
      for (const Bytes& bytes : store.multiGet(keys)) read_history(bytes, histories);
    }
    return operation_report(failure, histories);
  }

  void set_report(std::string report) {
    std::vector<std::weak_ptr<Interrupt>> interrupts;
    {
      const std::lock_guard lock(mutex_);
      if (!report_.empty()) return;
      report_ = std::move(report);
      failed_.store(true, std::memory_order_release);
      interrupts.swap(interrupts_);
    }
    changed_.notify_all();
    write_dump();
    for (const std::weak_ptr<Interrupt>& weak : interrupts) {
      if (const std::shared_ptr<Interrupt> interrupt = weak.lock()) (*interrupt)();
    }
  }

  void write_dump() const {
    if (options_.dump_folder.empty()) return;
    RankDump dump{.history = log_.snapshot(OperationLog::kCapacity), .members = log_.members()};
    dump.members.resize(dump.history.groups.size());
    const std::string problem = write_rank_dump_file(options_.dump_folder, dump);
    if (!problem.empty()) {
      std::cerr << absl::StrCat("accelerate: rank ", options_.rank, ": no dump: ", problem, "\n")
                << std::flush;
    }
  }

  void raise_alarm(c10d::Store& store, const OperationFailure& failure, bool explained) const {
    const nlohmann::ordered_json alarm{{"rank", options_.rank},
                                       {"reason", failure.reason},
                                       {"group", failure.group},
                                       {"ranks", failure.ranks},
                                       {"explained", explained}};
    const Bytes mine = to_bytes(json_text(alarm));
    const Bytes wake = to_bytes("alarm");
    if (store.compareSet(kAlarmKey, {}, mine) != mine) {
      // Another rank was first and wakes all others, but it may die before it does.
      store.set(wake_key(options_.rank), wake);
      return;
    }
    std::vector<std::string> keys;
    for (int rank = 0; rank < options_.world_size; ++rank) keys.push_back(wake_key(rank));
    store.multiSet(keys, std::vector<Bytes>(keys.size(), wake));
  }

  const Options options_;
  OperationLog log_;
  std::mutex one_request_;
  c10::intrusive_ptr<c10d::Store> request_store_;  // of requests; the helper thread has its own

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;    // the alarm, by this rank
  bool listening_ = true;  // the helper thread does
  bool observing_ = true;  // the observing thread does
  bool stopping_ = false;
  Request request_ = Request::kPending;  // the latest one
  std::string report_;                   // empty: the job has not failed
  std::atomic<bool> failed_ = false;
  std::vector<std::weak_ptr<Interrupt>> interrupts_;
};

JobWatch::JobWatch(Options options)
    : state_(std::make_shared<State>(std::move(options))),
      failed_(&state_->failed()),
      helper_([state = state_] { state->listen(); }),
      observer_([state = state_] { state->observe(); }) {}

JobWatch::~JobWatch() { stop(); }

OperationLog& JobWatch::log() { return state_->log(); }

void JobWatch::raise() const { throw c10::DistBackendError(state_->report()); }

std::string JobWatch::fail(const OperationFailure& failure) { return state_->fail(failure); }

void JobWatch::fail_explained(const OperationFailure& failure) { state_->fail_explained(failure); }

std::shared_ptr<void> JobWatch::on_failure(Interrupt interrupt) {
  return state_->on_failure(std::move(interrupt));
}

void JobWatch::end(const std::string& how) { state_->end(how); }

void JobWatch::stop() {
  if (!helper_.joinable()) return;
  if (state_->stop()) {
    helper_.join();
    observer_.join();
  } else {
    helper_.detach();  // The store does not answer.
    observer_.detach();
  }
}

}  // namespace accelerate
