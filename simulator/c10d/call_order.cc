#include "simulator/c10d/call_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "simulator/c10d/collectives.h"

namespace accelerate::simulator {

void CallOrder::call(int task, const std::shared_ptr<Operation>& operation) {
  Rank& rank = ranks_[task];
  const int64_t number = rank.num_calls++;
  if (task == operation->tasks->front()) operation->number_of_call = number;
  rank.without_time.push_back(operation);
  if (rank.without_time.size() == 1) ++operation->num_first;
}

bool CallOrder::is_next(const Operation& operation) {
  return operation.carried_out && operation.num_first == operation.joined;
}

void CallOrder::carried_out(const std::shared_ptr<Operation>& operation) {
  operation->carried_out = true;
  (is_next(*operation) ? next_ : waiting_).push_back(operation);
}

std::shared_ptr<Operation> CallOrder::take_next() {
  if (next_.empty()) return nullptr;
  std::shared_ptr<Operation> operation = std::move(next_.back());
  next_.pop_back();
  return operation;
}

std::vector<std::shared_ptr<Operation>> CallOrder::without_time(int task) const {
  const auto& calls = ranks_[task].without_time;
  return {calls.begin(), calls.end()};
}

// The one whose event comes first; null if none waits.
std::shared_ptr<Operation> CallOrder::next_waiting() const {
  const auto order = [](const std::shared_ptr<Operation>& operation) {
    return std::tuple(std::min(operation->ready_ns, operation->awaited_from_ns),
                      operation->ready_ns, operation->number_of_call, operation->tasks->front());
  };
  const auto next = std::ranges::min_element(waiting_, {}, order);
  return next != waiting_.end() ? *next : nullptr;
}

// A nanosecond later than what it waits for, so that this comes first.
int64_t CallOrder::next_ns() const {
  const std::shared_ptr<Operation> next = next_waiting();
  return next ? std::min(next->ready_ns, next->awaited_from_ns) + 1 : INT64_MAX;
}

int64_t CallOrder::next_ready_ns() const {
  const std::shared_ptr<Operation> next = next_waiting();
  return next ? next->ready_ns : INT64_MAX;
}

void CallOrder::remove(const std::shared_ptr<Operation>& operation) {
  std::erase(waiting_, operation);
  for (const int task : *operation->tasks) {
    auto& calls = ranks_[task].without_time;
    const auto found = std::ranges::find(calls, operation);
    if (found == calls.end()) continue;  // the member had not called it
    const bool was_first = found == calls.begin();
    calls.erase(found);
    if (!was_first || calls.empty()) continue;
    const std::shared_ptr<Operation>& first = calls.front();
    ++first->num_first;
    if (!is_next(*first)) continue;
    std::erase(waiting_, first);
    next_.push_back(first);
  }
}

}  // namespace accelerate::simulator
