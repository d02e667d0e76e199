#include "simulator/c10d/communicator.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

std::string message_of(const std::exception& error) {
  const auto* with_backtrace = dynamic_cast<const c10::Error*>(&error);
  return with_backtrace != nullptr ? with_backtrace->what_without_backtrace() : error.what();
}

}  // namespace

Communicator::Communicator(Fabric& fabric, std::string name, std::vector<int> ranks)
    : fabric_(fabric),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      next_sequence_(ranks_.size()) {}

void Communicator::raise() {
  noticed_ = true;
  throw c10::DistBackendError(failure_);
}

void Communicator::check_usable() {
  if (!failure_.empty()) raise();
}

std::shared_ptr<Operation> Communicator::join(int member, Call call) {
  check_usable();
  const uint64_t sequence = next_sequence_[member]++;
  call.fingerprint.sequence = sequence;
  const size_t position = sequence - first_sequence_;
  if (position == collectives_.size()) {
    collectives_.push_back(std::make_shared<Operation>());
    collectives_.back()->calls.resize(ranks_.size());
  }
  std::shared_ptr<Operation> operation = collectives_[position];
  operation->calls[member] = std::move(call);
  operation->calls[member].joined = true;
  if (++operation->joined == size()) {
    collectives_.pop_front();
    ++first_sequence_;
    run_collective(*operation);
  }
  return operation;
}

void Communicator::run_collective(Operation& operation) {
  if (std::optional<std::string> difference = mismatch(operation)) {
    operation.failed = true;
    complete(operation);
    fail(*std::move(difference));
    return;
  }
  std::optional<std::string> problem;
  try {
    problem = run_calls(operation.calls);
  } catch (const std::exception& error) {
    // Everybody's call failed, not only that of the member which happened to come last.
    problem = message_of(error);
  }
  std::string report;
  if (problem) {
    report = absl::StrCat(operation.calls[0].fingerprint.to_string(), " of group \"", name_,
                          "\": ", *problem);
    operation.failed = true;
  }
  complete(operation);
  if (problem) fail(std::move(report));
}

void Communicator::complete(Operation& operation) {
  operation.done = true;
  operation.calls.clear();  // Works keep the tensors they return; the rest can go.
  for (int task : operation.waiting) fabric_.scheduler().wake(task);
  operation.waiting.clear();
}

void Communicator::fail(std::string report) {
  if (!failure_.empty()) return;
  failure_ = std::move(report);
  auto fail_one = [this](Operation& operation) {
    operation.failed = true;
    complete(operation);
  };
  for (auto& operation : collectives_) fail_one(*operation);
  for (Message& message : sends_) fail_one(*message.operation);
  for (Message& message : receives_) fail_one(*message.operation);
  collectives_.clear();
  sends_.clear();
  receives_.clear();
}

std::optional<std::string> Communicator::mismatch(const Operation& operation) const {
  const CollectiveFingerprint& first = operation.calls[0].fingerprint;
  for (const Call& call : operation.calls) {
    std::optional<std::string> difference = first.difference(call.fingerprint);
    if (!difference) continue;
    std::vector<std::pair<int, std::string>> texts;
    for (int member = 0; member < size(); ++member) {
      texts.emplace_back(ranks_[member], operation.calls[member].fingerprint.to_string());
    }
    return absl::StrCat("collective mismatch in call #", first.sequence, " of group \"", name_,
                        "\": ", *difference, "\n", lines_by_rank(texts));
  }
  return std::nullopt;
}

std::shared_ptr<Operation> Communicator::send(int member, Call call) {
  check_usable();
  const int receiver = call.fingerprint.peer;
  const int tag = call.fingerprint.tag;
  auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Message& m) {
    return m.receiver == receiver && m.tag == tag && (m.sender == member || m.sender == -1);
  });
  if (found == receives_.end()) {
    auto operation = std::make_shared<Operation>();
    operation->calls.resize(2);
    operation->calls[0] = std::move(call);
    sends_.push_back({member, receiver, tag, operation});
    return operation;
  }
  std::shared_ptr<Operation> operation = std::move(found->operation);
  receives_.erase(found);
  operation->calls[0] = std::move(call);
  operation->source = member;
  deliver(*operation);
  return operation;
}

std::shared_ptr<Operation> Communicator::receive(int member, Call call) {
  check_usable();
  const int sender = call.fingerprint.peer;
  const int tag = call.fingerprint.tag;
  auto found = std::find_if(sends_.begin(), sends_.end(), [&](const Message& m) {
    return m.receiver == member && m.tag == tag && (sender == -1 || m.sender == sender);
  });
  if (found == sends_.end()) {
    auto operation = std::make_shared<Operation>();
    operation->calls.resize(2);
    operation->calls[1] = std::move(call);
    receives_.push_back({sender, member, tag, operation});
    return operation;
  }
  std::shared_ptr<Operation> operation = std::move(found->operation);
  operation->source = found->sender;
  sends_.erase(found);
  operation->calls[1] = std::move(call);
  deliver(*operation);
  return operation;
}

void Communicator::deliver(Operation& operation) {
  const Call& sender = operation.calls[0];
  const Call& receiver = operation.calls[1];
  std::optional<std::string> problem;
  try {
    problem = run_message(sender, receiver);
  } catch (const std::exception& error) {
    problem = message_of(error);
  }
  std::string report;
  if (problem) {
    report =
        absl::StrCat("message mismatch in group \"", name_, "\": ", *problem, "\n  rank ",
                     ranks_[operation.source], ": ", sender.fingerprint.to_string(), "\n  rank ",
                     ranks_[sender.fingerprint.peer], ": ", receiver.fingerprint.to_string());
    operation.failed = true;
  }
  complete(operation);
  if (problem) fail(std::move(report));
}

void Communicator::wait(int member, const std::shared_ptr<Operation>& operation,
                        const Patience& patience) {
  const Deadline deadline{.at = patience.since + patience.timeout,
                          .counts_as_progress = patience.asked_for};
  while (!operation->done) {
    operation->waiting.push_back(ranks_[member]);
    const Wake wake =
        fabric_.scheduler().block([&] { return describe_wait(member, *operation); }, deadline);
    if (wake == Wake::kStalled) {
      fail(fabric_.scheduler().stall_report());
      raise();
    }
    if (wake == Wake::kDeadline && !operation->done) {
      time_out(member, *operation, patience.timeout);
    }
  }
  if (operation->failed) raise();
}

bool Communicator::poll(int member, const std::shared_ptr<Operation>& operation,
                        const Patience& patience) {
  if (operation->done) return true;
  fabric_.scheduler().poll();
  if (!operation->done && fabric_.scheduler().now() >= patience.since + patience.timeout) {
    time_out(member, *operation, patience.timeout);
  }
  return operation->done;
}

void Communicator::time_out(int member, const Operation& operation, absl::Duration timeout) {
  fail(absl::StrCat("timed out after ", absl::FormatDuration(timeout), ": rank ", ranks_[member],
                    " ", describe_wait(member, operation)));
}

void Communicator::abort(int member) {
  fail(absl::StrCat("group \"", name_, "\" was aborted by rank ", ranks_[member]));
}

std::vector<int> Communicator::missing_ranks(const Operation& operation) const {
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member) {
    if (!operation.calls[member].joined) missing.push_back(ranks_[member]);
  }
  return missing;
}

std::string Communicator::describe_send(const Message& message) const {
  return absl::StrCat("in ", message.operation->calls[0].fingerprint.to_string(), " of group \"",
                      name_, "\", waiting for rank ", ranks_[message.receiver], " to receive");
}

std::string Communicator::describe_receive(const Message& message) const {
  return absl::StrCat(
      "in ", message.operation->calls[1].fingerprint.to_string(), " of group \"", name_,
      "\", waiting for ",
      message.sender < 0 ? std::string("any rank") : absl::StrCat("rank ", ranks_[message.sender]),
      " to send");
}

std::string Communicator::describe_wait(int member, const Operation& operation) const {
  for (const Message& message : sends_) {
    if (message.operation.get() == &operation) return describe_send(message);
  }
  for (const Message& message : receives_) {
    if (message.operation.get() == &operation) return describe_receive(message);
  }
  return absl::StrCat("in ", operation.calls[member].fingerprint.to_string(), " of group \"", name_,
                      "\", waiting for ", rank_list(missing_ranks(operation)));
}

std::optional<std::string> Communicator::unnoticed_failure() const {
  if (noticed_) return std::nullopt;
  if (!failure_.empty()) return failure_;
  auto left = [this](int member, const std::string& description) {
    return absl::StrCat("never completed: rank ", ranks_[member], " left ", description);
  };
  if (!collectives_.empty()) {
    const Operation& operation = *collectives_.front();
    for (int member = 0; member < size(); ++member) {
      if (operation.calls[member].joined) return left(member, describe_wait(member, operation));
    }
  }
  if (!sends_.empty()) return left(sends_[0].sender, describe_send(sends_[0]));
  if (!receives_.empty()) return left(receives_[0].receiver, describe_receive(receives_[0]));
  return std::nullopt;
}

}  // namespace accelerate::simulator
