/// Messages in flight on shared links, at flow level: every flow gets its max-min fair share of the
/// links it crosses, and shares change whenever a flow starts or ends.
///
/// Bertsekas, Gallager: "Data Networks" (progressive filling). A flow waits for its latency first,
/// then transfers its bytes. Where SharedLinks are given, flows divide what collectives leave of
/// each link, and what there is of it at the time. What happened up to the end of the latest flow
/// stays, whatever is known later.
///
/// Cost: a start or an end examines the flows that share links with it, directly or through others.
///       next() tries the starts that are still to come, so call it after all starts that are
///       known.
/// Units: bytes, nanoseconds of virtual time. Times are kept with fractions; results are rounded
///        up.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "simulator/network/network.h"
#include "simulator/network/shared_links.h"

namespace accelerate::simulator {

class Flows {
 public:
  using Id = int64_t;
  struct Completion {
    Id id;
    int64_t at_ns;
  };

  /// Both must outlive this object; `shared` may be null.
  explicit Flows(const Network& network, const SharedLinks* shared = nullptr);
  ~Flows();

  /// Starts a message at `at_ns`, or now if that time is past. Zero bytes take the latency only.
  Id start(int source, int target, int64_t bytes, int64_t at_ns);

  /// The flow that ends next if no other starts; nullopt if no flow is in flight, or if the links
  /// of all of them are down for ever. Among equal times (before rounding) the lowest id is first.
  std::optional<Completion> next() const;

  /// Moves time to the end of that flow and removes the flow. next() has one.
  Completion finish_next();

  int64_t now_ns() const { return now_ns_; }

 private:
  class Shares;

  const Network& network_;
  const SharedLinks* const shared_;
  std::unique_ptr<Shares> shares_;
  int64_t now_ns_ = 0;
  Id next_id_ = 0;
  mutable std::optional<Completion> next_;
  mutable bool is_known_ = false;  // next_
  mutable int64_t version_ = 0;    // of shared_, when next_ was found
};

}  // namespace accelerate::simulator
