/// A source of events for the launcher's only loop.
///
/// The launcher is a single thread around a single poll. Every part that waits for descriptors or a
/// time is a source; no other code blocks.
/// Threads: the main thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace accelerate::launcher::process {

class EventSource {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~EventSource() = default;

  /// Appends what to wait for. Poll passes over negative descriptors.
  virtual void add_entries(std::vector<pollfd>& entries) = 0;

  /// Called after every wait with the entries that this source appended, also when nothing happened
  /// to them (`revents` is 0) and when only a time passed.
  virtual void react(absl::Span<const pollfd> entries) = 0;

  /// The latest time for the next call.
  virtual std::optional<Clock::time_point> deadline() const { return std::nullopt; }
};

/// Waits until something happened to one of the sources, or the first of their deadlines and of
/// `until`, and calls each of them in order.
void wait_for_events(absl::Span<EventSource* const> sources,
                     std::optional<EventSource::Clock::time_point> until = std::nullopt);

/// Poll's time-out until `deadline`, rounded up so that a loop does not spin through the last
/// millisecond.
int milliseconds_until(std::optional<EventSource::Clock::time_point> deadline);

/// The earlier of two, where nothing means never.
std::optional<EventSource::Clock::time_point> earlier(
    std::optional<EventSource::Clock::time_point> a,
    std::optional<EventSource::Clock::time_point> b);

}  // namespace accelerate::launcher::process
