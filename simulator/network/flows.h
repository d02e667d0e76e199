/// Messages under way on shared links, at flow level: every flow gets its max-min fair share of the
/// links it crosses, and shares change whenever a flow starts or ends.
///
/// Bertsekas, Gallager: "Data Networks" (progressive filling). A flow's latency passes first, then
/// its bytes.
///
/// Cost: a start or an end looks at the flows that share links with it, directly or through others.
///       next() tries out the starts that are still to come, so ask when there is nothing to add.
/// Units: bytes, nanoseconds of virtual time; fractions are kept inside, what comes out is rounded
///        up. Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "simulator/network/network.h"

namespace accelerate::simulator {

class Flows {
 public:
  using Id = int64_t;
  struct Completion {
    Id id;
    int64_t at_ns;
  };

  /// `network` must outlive this.
  explicit Flows(const Network& network);
  ~Flows();

  /// A message that starts at `at_ns`, or now if that is past. Zero bytes take the latency only.
  Id start(int source, int target, int64_t bytes, int64_t at_ns);

  /// The flow that ends next if no other starts, or nothing if there is none under way. Among equal
  /// times (before rounding) the lowest id comes first.
  std::optional<Completion> next() const;

  /// Lets time pass to the end of that flow and forgets it. There must be one.
  Completion finish_next();

  int64_t now_ns() const { return now_ns_; }

 private:
  class Shares;

  const Network& network_;
  std::unique_ptr<Shares> shares_;
  int64_t now_ns_ = 0;
  Id next_id_ = 0;
  mutable std::optional<Completion> next_;
};

}  // namespace accelerate::simulator
