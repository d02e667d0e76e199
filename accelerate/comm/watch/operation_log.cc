#include "accelerate/comm/watch/operation_log.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

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

nlohmann::json OperationHistory::to_json() const {
  nlohmann::json group_list = nlohmann::json::array();
  for (const GroupRecord& group : groups) {
    group_list.push_back({{"name", group.name},
                          {"ranks", group.ranks},
                          {"made", group.made},
                          {"collectives", group.collectives}});
  }
  nlohmann::json operation_list = nlohmann::json::array();
  for (const OperationRecord& record : operations) {
    operation_list.push_back({{"group", record.group},
                              {"state", static_cast<int>(record.state)},
                              {"fingerprint", record.fingerprint.to_json()}});
  }
  return {{"rank", rank},
          {"ending", ending},
          {"groups", std::move(group_list)},
          {"operations", std::move(operation_list)}};
}

OperationHistory OperationHistory::from_json(const nlohmann::json& json) {
  OperationHistory history{.rank = json.at("rank"), .ending = json.at("ending")};
  for (const nlohmann::json& group : json.at("groups")) {
    history.groups.push_back({.name = group.at("name"),
                              .ranks = group.at("ranks"),
                              .made = group.at("made"),
                              .collectives = group.at("collectives")});
  }
  for (const nlohmann::json& record : json.at("operations")) {
    history.operations.push_back(
        {.group = record.at("group"),
         .state = static_cast<OperationState>(record.at("state").get<int>()),
         .fingerprint = CollectiveFingerprint::from_json(record.at("fingerprint"))});
  }
  return history;
}

}  // namespace accelerate
