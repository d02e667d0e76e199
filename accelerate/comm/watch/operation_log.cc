#include "accelerate/comm/watch/operation_log.h"

#include <algorithm>
#include <utility>

#include "accelerate/values/fields.h"

namespace accelerate {

int OperationLog::add_group(std::string name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({.name = std::move(name), .ranks = std::move(ranks)});
  return static_cast<int>(groups_.size()) - 1;
}

void OperationLog::group_is_made(int group) {
  const std::lock_guard lock(mutex_);
  groups_[group].made = true;
}

OperationLog::Ticket OperationLog::enter(int group, CollectiveFingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  if (!c10d::isP2POp(fingerprint.op)) fingerprint.sequence = groups_[group].collectives++;
  OperationRecord& record = ring_[next_ % kCapacity];
  record.group = group;
  record.state = OperationState::kIssued;
  record.fingerprint = fingerprint;
  return next_++;
}

void OperationLog::set_state(Ticket ticket, OperationState state) {
  const std::lock_guard lock(mutex_);
  if (remembers(ticket)) ring_[ticket % kCapacity].state = state;
}

std::string OperationLog::describe(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  if (!remembers(ticket)) return "an operation long ago";
  return ring_[ticket % kCapacity].fingerprint.to_string();
}

void OperationLog::refuse(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (!remembers(ticket)) return;
  OperationRecord& record = ring_[ticket % kCapacity];
  record.state = OperationState::kRefused;
  if (!c10d::isP2POp(record.fingerprint.op)) --groups_[record.group].collectives;
}

void OperationLog::end(std::string ending) {
  const std::lock_guard lock(mutex_);
  ending_ = std::move(ending);
}

OperationHistory OperationLog::snapshot() const {
  const std::lock_guard lock(mutex_);
  OperationHistory history{.rank = rank_, .ending = ending_, .groups = groups_};
  const Ticket first = next_ - std::min<Ticket>(next_, kCapacity);
  for (Ticket ticket = first; ticket < next_; ++ticket) {
    history.operations.push_back(ring_[ticket % kCapacity]);
  }
  return history;
}

nlohmann::ordered_json OperationHistory::to_json() const { return to_dict(*this); }

OperationHistory OperationHistory::from_json(const nlohmann::ordered_json& json) {
  OperationHistory history;
  internal::read_fields(json, "a rank's operation history", history);
  return history;
}

}  // namespace accelerate
