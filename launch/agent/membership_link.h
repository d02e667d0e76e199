/// What an agent reports, and the orders that it gets for it.
/// Threads: the main thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "launch/agent/membership.h"
#include "launch/process/event_source.h"

namespace accelerate::launch::agent {

class MembershipLink : public process::EventSource {
 public:
  /// No ranks run here, and the next round's store would be served at `store_port`.
  virtual void ready(uint16_t store_port) = 0;
  /// A rank failed here.
  virtual void failed(const Failure& failure) = 0;
  /// All ranks of the round ended well.
  virtual void done() = 0;
  /// This machine leaves; it gets no more orders.
  virtual void leave(const Failure& failure) = 0;
  /// Whether all reports have reached the server.
  virtual bool is_flushed() const = 0;

  std::optional<Order> next_order() {
    if (orders_.empty()) return std::nullopt;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }

 protected:
  std::deque<Order> orders_;
};

/// A run on this machine alone: it asks the rules directly.
class LocalLink final : public MembershipLink {
 public:
  LocalLink(const MembershipRules& rules, const Member& machine)
      : membership_(rules, Clock::now()) {
    // Cannot fail: it is the first, and a run on one machine has no ranks of machines.
    membership_.admit(kMember, machine).IgnoreError();
  }

  void ready(uint16_t store_port) override {
    membership_.ready(kMember, store_port);
    advance();
  }
  void failed(const Failure& failure) override {
    membership_.failed(kMember, failure);
    advance();
  }
  void done() override {
    membership_.done(kMember);
    advance();
  }
  void leave(const Failure&) override {}
  bool is_flushed() const override { return true; }

  void add_entries(std::vector<pollfd>&) override {}
  void react(absl::Span<const pollfd>) override {}

 private:
  static constexpr Membership::MemberId kMember = 0;

  void advance() {
    for (auto& [member, order] : membership_.advance(Clock::now())) {
      orders_.push_back(std::move(order));
    }
  }

  Membership membership_;
};

}  // namespace accelerate::launch::agent
