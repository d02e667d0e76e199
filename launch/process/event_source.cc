#include "launch/process/event_source.h"

#include <algorithm>
#include <cstdint>

namespace accelerate::launcher::process {

using TimePoint = EventSource::Clock::time_point;

std::optional<TimePoint> earlier(std::optional<TimePoint> a, std::optional<TimePoint> b) {
  if (a && b) return std::min(*a, *b);
  return a ? a : b;
}

int milliseconds_until(std::optional<TimePoint> deadline) {
  if (!deadline) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*deadline - EventSource::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
}

void wait_for_events(absl::Span<EventSource* const> sources, std::optional<TimePoint> until) {
  std::vector<pollfd> entries;
  std::vector<size_t> ends;
  std::optional<TimePoint> deadline = until;
  for (EventSource* source : sources) {
    source->add_entries(entries);
    ends.push_back(entries.size());
    deadline = earlier(deadline, source->deadline());
  }
  if (poll(entries.data(), entries.size(), milliseconds_until(deadline)) <= 0) {
    for (pollfd& entry : entries) entry.revents = 0;
  }
  size_t begin = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i]->react(absl::MakeConstSpan(entries).subspan(begin, ends[i] - begin));
    begin = ends[i];
  }
}

}  // namespace accelerate::launcher::process
