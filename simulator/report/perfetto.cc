#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/message_text.h"
#include "simulator/report/level_of_detail.h"
#include "simulator/report/output_file.h"
#include "simulator/report/report.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// More than any stream's number.
constexpr int kThreadsPerDevice = 2 * kDiskStream;

// A stream of a rank's device, or the rank's host.
struct Place {
  int rank = 0;
  int device = 0;
  int stream = 0;

  auto operator<=>(const Place&) const = default;
};

// Viewers show process and thread 0 as the idle process. Ranks and streams start at 0, and the
// host's track is stream -1.
int process_of(int rank) { return rank + 1; }
int thread_of(const Place& place) { return place.device * kThreadsPerDevice + place.stream + 2; }

std::string text_of(const Place& place) {
  return absl::StrCat("\"pid\":", process_of(place.rank), ",\"tid\":", thread_of(place));
}

// The fewest samples of a memory curve, for the ranks that people look at first.
constexpr size_t kFeaturedMemorySamples = 2000;
// Slices for each memory sample in the file.
constexpr size_t kSlicesPerMemorySample = 4;

// A slice or a crowd of them, and its track.
struct Shown {
  Place place;
  PageSlice slice;
};

// At most about `max_slices`, in the order of start and place.
std::vector<Shown> shown_slices(const Trace& trace, size_t max_slices) {
  std::vector<Shown> shown;
  for (const PageTrack& track : page_tracks(trace, max_slices)) {
    const Place place{track.rank, track.device, track.stream};
    for (const PageSlice& slice : track.slices) shown.push_back({place, slice});
  }
  std::ranges::stable_sort(
      shown, {}, [](const Shown& each) { return std::tuple(each.slice.start_ns, each.place); });
  return shown;
}

// By operation, the members' slices in their order, without their waits. Empty if none was kept.
std::vector<std::vector<const Shown*>> slices_of_operations(const Trace& trace,
                                                            const std::vector<Shown>& shown) {
  std::vector<std::vector<const Shown*>> slices(trace.operations.size());
  for (const Shown& each : shown) {
    if (each.slice.kind == SliceKind::kWait || each.slice.operation < 0) continue;
    slices[each.slice.operation].push_back(&each);
  }
  return slices;
}

class Writer {
 public:
  Writer(const Trace& trace, size_t max_slices, OutputFile& file)
      : trace_(trace),
        file_(file),
        slices_(shown_slices(trace, max_slices)),
        max_samples_(max_slices / kSlicesPerMemorySample) {
    for (const std::string& name : trace.names) names_.push_back(html_json_text(name));
  }

  void write() {
    file_.append("{\"displayTimeUnit\":\"ns\",\"otherData\":{");
    file_.append(absl::StrCat("\"topology\":", html_json_text(trace_.topology), ",\"seed\":\"",
                              trace_.seed, "\",\"repeat\":", html_json_text(trace_.repeat_command),
                              ",\"device\":", html_json_text(trace_.device),
                              ",\"recorded_slices\":", trace_.slices.size(),
                              ",\"shown_slices\":", slices_.size(),
                              ",\"dropped_slices\":", trace_.dropped_slices, "},\n"));
    file_.append("\"traceEvents\":[");
    write_names();
    for (const Shown& shown : slices_) write_slice(shown);
    write_flows();
    write_strikes();
    for (const auto& curve : page_memory(trace_, max_samples_, kFeaturedMemorySamples)) {
      for (const MemorySample& sample : curve) write_memory(sample);
    }
    file_.append("\n]}\n");
  }

 private:
  // `fields` of an event, without its braces.
  void event(absl::string_view fields) {
    file_.append(absl::StrCat(separator_.next(), "\n{", fields, "}"));
  }

  void name_event(int rank, absl::string_view what, absl::string_view more,
                  absl::string_view argument) {
    event(absl::StrCat("\"ph\":\"M\",\"name\":\"", what, "\",\"pid\":", process_of(rank), more,
                       ",\"args\":{", argument, "}"));
  }

  void write_names() {
    for (int rank = 0; rank < trace_.world_size; ++rank) {
      const std::string name =
          absl::StrCat("rank ", rank, " (node ", rank / trace_.ranks_per_node,
                       trace_.axes.empty() ? "" : ", ", place_of(trace_, rank), ")");
      name_event(rank, "process_name", "", absl::StrCat("\"name\":\"", name, "\""));
      name_event(rank, "process_sort_index", "", absl::StrCat("\"sort_index\":", rank));
    }
    std::set<Place> places;
    for (const Slice& slice : trace_.slices) {
      places.insert({slice.rank, slice.device, slice.stream});
    }
    for (const Place& place : places) {
      const auto& [rank, device, stream] = place;
      const std::string thread = absl::StrCat(",\"tid\":", thread_of(place));
      const std::string label = device_label(trace_, rank, device);
      const std::string name =
          stream == kHostStream        ? "host"
          : stream == kDiskStream      ? "disk, reading"
          : stream == kDiskWriteStream ? "disk, writing"
          : stream == kHostWaitStream
              ? "host, waiting"
              : absl::StrCat(label, label.empty() ? "" : " ", "stream ", stream);
      name_event(rank, "thread_name", thread, absl::StrCat("\"name\":\"", name, "\""));
      name_event(rank, "thread_sort_index", thread,
                 absl::StrCat("\"sort_index\":", thread_of(place)));
    }
  }

  void write_slice(const Shown& shown) {
    const PageSlice& slice = shown.slice;
    const std::string name =
        slice.count > 1
            ? html_json_text(absl::StrCat(slice.count, " slices, most ", trace_.names[slice.name]))
            : names_[slice.name];
    std::string text =
        absl::StrCat("\"ph\":\"X\",\"name\":", name, ",\"cat\":\"", to_string(slice.kind), "\",",
                     text_of(shown.place), ",\"ts\":", microseconds(slice.start_ns),
                     ",\"dur\":", microseconds(slice.end_ns - slice.start_ns));
    if (slice.count > 1) {
      absl::StrAppend(&text, ",\"args\":{\"slices\":", slice.count, ",\"busy_ns\":", slice.busy_ns,
                      "}");
    } else if (slice.operation >= 0) {
      const TraceOperation& operation = trace_.operations[slice.operation];
      absl::StrAppend(
          &text, ",\"args\":{\"operation\":", slice.operation,
          ",\"group\":", names_[operation.group], ",\"algorithm\":", names_[operation.algorithm],
          ",\"bytes\":", operation.bytes, ",\"ranks\":\"", rank_ranges(operation.ranks),
          "\",\"last_rank\":", operation.last_rank, ",\"spread_ns\":", operation.spread_ns, "}");
    }
    event(text);
  }

  void write_flows() {
    std::vector<std::vector<const Shown*>> slices = slices_of_operations(trace_, slices_);
    for (size_t operation = 0; operation < trace_.operations.size(); ++operation) {
      std::vector<const Shown*>& path = slices[operation];
      if (path.size() < 2) continue;
      const std::vector<int>& ranks = trace_.operations[operation].ranks;
      if (path[0]->slice.kind == SliceKind::kMessage && !ranks.empty()) {
        std::ranges::stable_partition(path, [&ranks](const Shown* shown) {
          return shown->place.rank == ranks.front();  // the sender
        });
      }
      int64_t at_ns = 0;
      for (size_t i = 0; i < path.size(); ++i) {
        const Shown& shown = *path[i];
        // An arrow never goes back in time, and its end lies within the slice.
        at_ns = std::max(std::min(at_ns, shown.slice.end_ns - 1), shown.slice.start_ns);
        const char* phase = i == 0 ? "s" : i + 1 == path.size() ? "f" : "t";
        event(absl::StrCat("\"ph\":\"", phase,
                           "\",\"name\":", names_[trace_.operations[operation].name],
                           ",\"cat\":\"flow\",\"id\":", operation + 1, ",", text_of(shown.place),
                           ",\"ts\":", microseconds(at_ns), i == 0 ? "" : ",\"bp\":\"e\""));
      }
    }
  }

  // An instant of the rank that came to the place.
  void write_strikes() {
    for (const FaultStrike& strike : trace_.strikes) {
      event(absl::StrCat("\"ph\":\"i\",\"s\":\"p\",\"name\":", names_[strike.rule],
                         ",\"cat\":\"fault\",", text_of({strike.rank, 0, kHostStream}),
                         ",\"ts\":", microseconds(strike.at_ns)));
    }
  }

  void write_memory(const MemorySample& sample) {
    std::string values;
    for (size_t i = 0; i < kNumMemoryCategories; ++i) {
      absl::StrAppend(&values, i == 0 ? "" : ",", "\"", to_string(static_cast<MemoryCategory>(i)),
                      "\":", sample.bytes[i]);
    }
    const std::string label = device_label(trace_, sample.rank, sample.device);
    event(absl::StrCat("\"ph\":\"C\",\"name\":\"memory", label.empty() ? "" : " of ", label,
                       "\",\"pid\":", process_of(sample.rank),
                       ",\"ts\":", microseconds(sample.at_ns), ",\"args\":{", values, "}"));
  }

  const Trace& trace_;
  OutputFile& file_;
  const std::vector<Shown> slices_;
  const size_t max_samples_;
  std::vector<std::string> names_;  // as JSON
  Separator separator_;
};

}  // namespace

absl::Status write_perfetto(const Trace& trace, const std::string& path, size_t max_slices) {
  absl::StatusOr<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  Writer(trace, max_slices, *file).write();
  return file->commit();
}

}  // namespace accelerate::simulator
