#include "accelerate/comm/job_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr char kAlarmKey[] = "accelerate/watch/alarm";
constexpr char kReportKey[] = "accelerate/watch/report";
// How long one blocking wait of the helper thread lasts: it only bounds how long a thread outlives
// a store that vanished without closing its connections.
constexpr std::chrono::seconds kListenSlice(30);
// The report comes from the rank that collects for one grace; then it has to travel.
constexpr int kGracesForReport = 2;
constexpr int kGracesToGiveUp = 3;

std::string log_key(int rank) { return absl::StrCat("accelerate/watch/log/", rank); }
std::string wake_key(int rank) { return absl::StrCat("accelerate/watch/wake/", rank); }

Bytes to_bytes(const std::string& text) { return Bytes(text.begin(), text.end()); }
std::string to_text(const Bytes& bytes) { return std::string(bytes.begin(), bytes.end()); }

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

JobWatch::JobWatch(Options options)
    : options_(std::move(options)),
      log_(options_.rank),
      ask_store_(options_.connect()),
      helper_([this] { listen(); }) {}

JobWatch::~JobWatch() { stop(); }

void JobWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (!helper_.joinable()) return;
  try {
    const std::lock_guard lock(store_mutex_);
    ask_store_->set(wake_key(options_.rank), to_bytes("end"));
  } catch (const std::exception&) {
    // Without a store the helper thread has nothing to listen to and ends, too.
  }
  helper_.join();
}

void JobWatch::raise() const {
  const std::lock_guard lock(mutex_);
  throw c10::DistBackendError(report_);
}

void JobWatch::listen() {
  try {
    const c10::intrusive_ptr<c10d::Store> store = options_.connect();
    auto stopping = [this] {
      const std::lock_guard lock(mutex_);
      return stopping_;
    };
    while (!wait_for_keys(*store, {wake_key(options_.rank)}, kListenSlice)) {
      if (stopping()) break;
    }
    if (!stopping()) answer_alarm(*store);
  } catch (const std::exception&) {
    // The store is gone, and with it everybody who could ask or answer.
  }
  const std::lock_guard lock(mutex_);
  listening_ = false;
  changed_.notify_all();
}

void JobWatch::answer_alarm(c10d::Store& store) {
  publish_log(store);
  const nlohmann::json alarm = nlohmann::json::parse(to_text(store.get(kAlarmKey)));
  const OperationFailure failure{
      .reason = alarm.at("reason"), .group = alarm.at("group"), .ranks = alarm.at("ranks")};
  const auto grace = absl::ToChronoMilliseconds(options_.grace);
  if (alarm.at("explained")) {
    set_report(failure.reason);
  } else if (alarm.at("rank") == options_.rank) {
    const std::string report = collect_report(store, failure);
    store.set(kReportKey, to_bytes(report));
    set_report(report);
  } else if (wait_for_keys(store, {kReportKey}, grace * kGracesForReport)) {
    set_report(to_text(store.get(kReportKey)));
  } else {
    set_report(collect_report(store, failure));
  }
}

void JobWatch::publish_log(c10d::Store& store) const {
  store.set(log_key(options_.rank), to_bytes(log_.snapshot().to_json().dump()));
}

std::string JobWatch::collect_report(c10d::Store& store, const OperationFailure& failure) const {
  std::vector<std::string> keys;
  for (int rank : failure.ranks) keys.push_back(log_key(rank));
  if (!wait_for_keys(store, keys, absl::ToChronoMilliseconds(options_.grace))) {
    // Whoever is missing is named by the report.
    std::erase_if(keys, [&](const std::string& key) { return !store.check({key}); });
  }
  std::vector<OperationHistory> histories;
  if (!keys.empty()) {
    for (const Bytes& bytes : store.multiGet(keys)) {
      histories.push_back(OperationHistory::from_json(nlohmann::json::parse(to_text(bytes))));
    }
  }
  return operation_report(failure, histories);
}

void JobWatch::set_report(std::string report) {
  std::vector<std::weak_ptr<Interrupt>> interrupts;
  {
    const std::lock_guard lock(mutex_);
    if (!report_.empty()) return;
    report_ = std::move(report);
    failed_.store(true, std::memory_order_release);
    interrupts.swap(interrupts_);
  }
  changed_.notify_all();
  for (const std::weak_ptr<Interrupt>& weak : interrupts) {
    if (const std::shared_ptr<Interrupt> interrupt = weak.lock()) (*interrupt)();
  }
}

std::shared_ptr<void> JobWatch::on_failure(Interrupt interrupt) {
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

void JobWatch::raise_alarm(const OperationFailure& failure, bool explained) {
  const nlohmann::json alarm{{"rank", options_.rank},
                             {"reason", failure.reason},
                             {"group", failure.group},
                             {"ranks", failure.ranks},
                             {"explained", explained}};
  const Bytes mine = to_bytes(alarm.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  const Bytes wake = to_bytes("alarm");
  const std::lock_guard lock(store_mutex_);
  if (ask_store_->compareSet(kAlarmKey, {}, mine) != mine) {
    // Another rank was first and wakes everybody; that it did not die before is not certain.
    ask_store_->set(wake_key(options_.rank), wake);
    return;
  }
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.world_size; ++rank) keys.push_back(wake_key(rank));
  ask_store_->multiSet(keys, std::vector<Bytes>(keys.size(), wake));
}

std::string JobWatch::fail(const OperationFailure& failure) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!report_.empty()) return report_;
    first = !std::exchange(raised_, true);
  }
  std::string trouble = "no report came in time";
  if (first) {
    try {
      raise_alarm(failure, /*explained=*/false);
    } catch (const std::exception&) {
      trouble =
          "the job's store, which rank 0 serves, does not answer: rank 0 is gone or unreachable";
    }
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, absl::ToChronoMilliseconds(options_.grace) * kGracesToGiveUp,
                      [this] { return !report_.empty() || !listening_; });
    if (!report_.empty()) return report_;
    if (!listening_ && !stopping_) {
      trouble =
          "the job's store, which rank 0 serves, does not answer: rank 0 is gone or unreachable";
    }
  }
  set_report(absl::StrCat(operation_report(failure, {log_.snapshot()}), "\n", trouble));
  const std::lock_guard lock(mutex_);
  return report_;
}

void JobWatch::fail_explained(const OperationFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (!report_.empty() || std::exchange(raised_, true)) return;
  }
  try {
    raise_alarm(failure, /*explained=*/true);
  } catch (const std::exception&) {
    // Nobody is left to tell.
  }
  set_report(failure.reason);
}

void JobWatch::end(const std::string& how) {
  log_.end(how);
  try {
    const std::lock_guard lock(store_mutex_);
    publish_log(*ask_store_);
  } catch (const std::exception&) {
    // Nobody is left to ask.
  }
}

}  // namespace accelerate
