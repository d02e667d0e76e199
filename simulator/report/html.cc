#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "simulator/report/failed_ranks.h"
#include "simulator/report/level_of_detail.h"
#include "simulator/report/output_file.h"
#include "simulator/report/report.h"
#include "simulator/report/report_text.h"
#include "simulator/report/template.h"
#include "simulator/trace/critical_path.h"
#include "simulator/trace/step_shares.h"

namespace accelerate::simulator {
namespace {

constexpr size_t kFeaturedMemorySamples = 4000;
constexpr int kMaxMatrixBlocks = 128;

// How much a page shows at most.
constexpr size_t kMaxSlices = 400'000;
constexpr size_t kMaxMemorySamples = 120'000;
// Cells of the communication matrix in a row; with more ranks a cell is a block of them.
constexpr int kMatrixRanks = 64;

// A slice is four numbers: the start after the previous slice's, the duration, the name and kind,
// and for a crowd its size and busy share (in 1/1000), otherwise the operation + 1.
constexpr int64_t kCrowd = 8;
constexpr int64_t kNameFactor = 16;
constexpr int64_t kCountFactor = 1024;

// How many neighbouring ranks share a row of the matrix: those of a node, or of several nodes,
// unless the nodes are few and large.
int matrix_block(const Trace& trace) {
  const int world = trace.world_size;
  if (world <= kMatrixRanks) return 1;
  const auto blocks = [world](int block) { return (world + block - 1) / block; };
  int block = trace.ranks_per_node;
  if (blocks(block) < 8) return (world + kMatrixRanks - 1) / kMatrixRanks;
  while (blocks(block) > kMaxMatrixBlocks) block *= 2;
  return block;
}

// The data of the page, as compact JSON that page_data.js reads. Names, kinds and categories are
// indices; times and bytes of a track or curve are differences to the element before, which keeps
// numbers short.
class Writer {
 public:
  Writer(const Trace& trace, OutputFile& file) : trace_(trace), file_(file) {}

  void write() {
    file_.append("{");
    run();
    failure();
    list("faults", trace_.faults.size(),
         [&](size_t i) { return html_json_text(trace_.faults[i]); });
    steps();
    path();
    list("names", trace_.names.size(), [&](size_t i) { return html_json_text(trace_.names[i]); });
    list("kinds", kNumSliceKinds,
         [](size_t i) { return html_json_text(to_string(static_cast<SliceKind>(i))); });
    list("categories", kNumMemoryCategories,
         [](size_t i) { return html_json_text(to_string(static_cast<MemoryCategory>(i))); });
    list("places", trace_.axes.empty() ? 0 : trace_.world_size,
         [&](size_t rank) { return html_json_text(place_of(trace_, static_cast<int>(rank))); });
    ranks();
    operators();
    collectives();
    links();
    modules();
    tracks();
    operations();
    memory();
    matrix();
    file_.append("\n}");
  }

 private:
  void field(absl::string_view name, absl::string_view value) {
    file_.append(absl::StrCat(separator_.next(), "\n\"", name, "\":", value));
  }

  static std::string texts(const std::map<std::string, std::string>& named) {
    std::string object = "{";
    Separator separator;
    for (const auto& [name, text] : named) {
      absl::StrAppend(&object, separator.next(), html_json_text(name), ":", html_json_text(text));
    }
    return object + "}";
  }

  template <typename Text>
  void list(absl::string_view name, size_t size, const Text& text) {
    field(name, "[");
    for (size_t i = 0; i < size; ++i) file_.append(absl::StrCat(i == 0 ? "" : ",", text(i)));
    file_.append("]");
  }

  void run() {
    field("topology", html_json_text(trace_.topology));
    // As text: JavaScript's numbers end at 53 bits.
    field("seed", absl::StrCat("\"", trace_.seed, "\""));
    field("command", html_json_text(trace_.repeat_command));
    field("versions", texts(trace_.versions));
    field("arithmetic", texts(trace_.arithmetic));
    field("device", html_json_text(trace_.device));
    field("timeIsModelled", models_time(trace_) ? "true" : "false");
    field("capacity", absl::StrCat(trace_.memory_capacity));
    field("worldSize", absl::StrCat(trace_.world_size));
    field("executedRanks", absl::StrCat(num_executed(trace_)));
    field("ranksPerNode", absl::StrCat(trace_.ranks_per_node));
    field("devicesPerRank", absl::StrCat(trace_.devices_per_rank));
    field("elapsed", absl::StrCat(elapsed_ns(trace_)));
    field("recordedSlices", absl::StrCat(trace_.slices.size()));
    field("droppedSlices", absl::StrCat(trace_.dropped_slices));
    field("recordedSamples", absl::StrCat(trace_.memory.size()));
  }

  void failure() {
    if (!trace_.failure) return field("failure", "null");
    const std::vector<FailedRanks> rows = failed_ranks(*trace_.failure);
    field("failure",
          absl::StrCat("{\"message\":", html_json_text(trace_.failure->message), ",\"ranks\":["));
    Separator separator;
    for (const FailedRanks& row : rows) {
      file_.append(absl::StrCat(separator.next(), "[\"", rank_ranges(row.ranks), "\",",
                                html_json_text(row.at_failure.state), ",",
                                html_json_text(row.at_failure.last_call), "]"));
    }
    file_.append("]}");
  }

  void steps() {
    list("stepEnds", trace_.steps.size(),
         [&](size_t i) { return absl::StrCat(trace_.steps[i].end_ns); });
    const std::optional<StepTimes> times = step_times(trace_);
    if (!times.has_value()) {
      field("phases", "[]");
      field("shares", "[]");
      return field("steps", "null");
    }
    field("steps",
          absl::StrCat("{\"count\":", times->steps, ",\"first\":", times->first_ns,
                       ",\"shortest\":", times->shortest_ns, ",\"median\":", times->median_ns,
                       ",\"medianStep\":", times->median_step, ",\"longest\":", times->longest_ns,
                       ",\"mfu\":", json_text(times->mfu),
                       ",\"samples\":", json_text(trace_.samples_per_step), "}"));
    list("phases", kNumStepPhases, [&](size_t i) {
      return absl::StrCat("[\"", to_string(static_cast<StepPhase>(i)), "\",",
                          json_text(times->phase_ns[i]), "]");
    });
    const auto spent = step_shares(trace_);
    list("shares", spent ? kNumStepActivities : 0, [&](size_t i) {
      return absl::StrCat("[\"", to_string(static_cast<StepActivity>(i)), "\",", (*spent)[i], "]");
    });
  }

  // The shares as [label, part, time, segments], the longest segments as [part, what, rank, start
  // in the step, time].
  void path() {
    const std::optional<CriticalPath> path = critical_path(trace_);
    if (!path) return field("path", "null");
    field("path", absl::StrCat("{\"step\":", path->step, ",\"ranks\":\"", rank_ranges(path->ranks),
                               "\",\"shares\":["));
    for (const PathShare& share : path->shares) {
      file_.append(absl::StrCat(
          &share == path->shares.data() ? "" : ",", "[", html_json_text(path_label(trace_, share)),
          ",\"", to_string(share.part), "\",", share.total_ns, ",", share.segments, "]"));
    }
    file_.append("],\"longest\":[");
    for (const PathSegment& segment : path->longest) {
      file_.append(absl::StrCat(
          &segment == path->longest.data() ? "" : ",", "[\"", to_string(segment.part), "\",",
          html_json_text(trace_.names[segment.name]), ",", segment.rank, ",",
          segment.start_ns - path->start_ns, ",", segment.end_ns - segment.start_ns, "]"));
    }
    file_.append("]}");
  }

  void ranks() {
    list("ranks", trace_.ranks.size(), [&](size_t i) {
      const RankSummary& rank = trace_.ranks[i];
      return absl::StrCat("[", rank.end_ns, ",", rank.compute_ns, ",", rank.communication_ns, ",",
                          rank.exposed_ns, ",", rank.memory_peak, ",", json_text(rank.flops), ",",
                          rank.driver_peak, ",", rank.allocation_retries, "]");
    });
  }

  void operators() {
    list("operators", trace_.operators.size(), [&](size_t i) {
      const OperatorSummary& each = trace_.operators[i];
      return absl::StrCat("[", each.name, ",", each.calls, ",", each.total_ns, ",",
                          json_text(each.flops), ",", json_text(each.bytes), "]");
    });
  }

  void collectives() {
    list("collectives", trace_.collectives.size(), [&](size_t i) {
      const CollectiveSummary& each = trace_.collectives[i];
      return absl::StrCat("[", each.name, ",", each.algorithm, ",", each.ranks, ",", each.calls,
                          ",", json_text(each.bytes), ",", each.total_ns, ",",
                          json_text(each.bus_bytes), ",", each.shared_ns, "]");
    });
  }

  void links() {
    list("links", trace_.links.size(), [&](size_t i) {
      const LinkSummary& each = trace_.links[i];
      return absl::StrCat("[\"", to_string(each.kind), "\",", each.links, ",",
                          json_text(each.bytes_per_second), ",", json_text(each.bytes), ",",
                          json_text(each.use), ",", json_text(each.step_use), ",",
                          json_text(each.worst_step_use), ",", html_json_text(each.worst), ",",
                          json_text(each.mean_busy_ns), ",", json_text(each.step_bytes), "]");
    });
    const LinkSummary* busiest = busiest_links(trace_);
    field("busiestLinks", absl::StrCat(busiest != nullptr ? busiest - trace_.links.data() : -1));
  }

  // By module: its path, then bytes by category.
  void modules() {
    field("peakRank", absl::StrCat(trace_.peak_rank));
    list("modules", trace_.peak_modules.size(), [&](size_t i) {
      const ModuleMemory& each = trace_.peak_modules[i];
      return absl::StrCat("[", html_json_text(each.module), ",",
                          html_json_text(module_pattern(each.module)), ",",
                          absl::StrJoin(each.bytes, ","), "]");
    });
  }

  // Writes the tracks and numbers the operations that they show.
  void tracks() {
    const std::vector<PageTrack> tracks = page_tracks(trace_, kMaxSlices);
    list("tracks", tracks.size(), [&](size_t i) {
      const PageTrack& track = tracks[i];
      std::string text =
          absl::StrCat("\n[", track.rank, ",", track.device, ",", track.stream, ",[");
      int64_t before = 0;
      for (const PageSlice& slice : track.slices) {
        absl::StrAppend(&text, &slice == track.slices.data() ? "" : ",", slice.start_ns - before,
                        ",", slice.end_ns - slice.start_ns, ",", name_and_kind(slice), ",",
                        detail(slice));
        before = slice.start_ns;
      }
      return text + "]]";
    });
  }

  static int64_t name_and_kind(const PageSlice& slice) {
    return slice.name * kNameFactor + (slice.count > 1 ? kCrowd : 0) +
           static_cast<int64_t>(slice.kind);
  }

  int64_t detail(const PageSlice& slice) {
    if (slice.count > 1) {
      const int64_t length = std::max<int64_t>(1, slice.end_ns - slice.start_ns);
      const int64_t busy = std::min<int64_t>(1000, std::llround(1000.0 * slice.busy_ns / length));
      return slice.count * kCountFactor + busy;
    }
    if (slice.operation < 0) return 0;
    const auto [found, is_new] = operations_.insert({slice.operation, shown_operations_.size()});
    if (is_new) shown_operations_.push_back(slice.operation);
    return static_cast<int64_t>(found->second) + 1;
  }

  void operations() {
    list("operations", shown_operations_.size(), [&](size_t i) {
      const TraceOperation& each = trace_.operations[shown_operations_[i]];
      return absl::StrCat("[", each.name, ",", each.group, ",", each.algorithm, ",", each.bytes,
                          ",\"", rank_ranges(each.ranks), "\",", each.first_rank, ",",
                          each.last_rank, ",", each.spread_ns, "]");
    });
  }

  void memory() {
    field("memory", "[");
    Separator separator;
    for (const std::vector<MemorySample>& curve :
         page_memory(trace_, kMaxMemorySamples, kFeaturedMemorySamples)) {
      file_.append(
          absl::StrCat(separator.next(), "\n[", curve[0].rank, ",", curve[0].device, ",["));
      append_samples(curve);
      file_.append("]]");
    }
    file_.append("]");
  }

  void append_samples(absl::Span<const MemorySample> samples) {
    MemorySample before;
    std::string text;
    for (const MemorySample& sample : samples) {
      absl::StrAppend(&text, text.empty() ? "" : ",", sample.at_ns - before.at_ns);
      for (size_t i = 0; i < kNumMemoryCategories; ++i) {
        absl::StrAppend(&text, ",", sample.bytes[i] - before.bytes[i]);
      }
      before = sample;
    }
    file_.append(text);
  }

  // One view of all traffic, and one for each axis of the mesh and for groups along none.
  void matrix() {
    if (trace_.communication.empty()) return field("matrix", "null");
    const size_t world = trace_.world_size;
    const size_t block = matrix_block(trace_);
    const size_t size = (world + block - 1) / block;
    std::vector<double> all(size * size);
    std::map<int, std::vector<double>> by_axis;
    for (const Traffic& pair : trace_.communication) {
      const size_t cell = pair.source / block * size + pair.target / block;
      all[cell] += pair.bytes;
      std::vector<double>& of_axis = by_axis[pair.axis];
      of_axis.resize(size * size);
      of_axis[cell] += pair.bytes;
    }
    field("matrix", absl::StrCat("{\"block\":", block, ",\"size\":", size, ",\"views\":["));
    view("all", all);
    for (const auto& [axis, cells] : by_axis) {
      if (trace_.axes.empty()) break;
      file_.append(",");
      view(axis < 0 ? "no axis" : trace_.axes[axis].name, cells);
    }
    file_.append("]}");
  }

  void view(absl::string_view name, absl::Span<const double> cells) {
    file_.append(absl::StrCat("[", html_json_text(std::string(name)), ",["));
    for (size_t i = 0; i < cells.size(); ++i) {
      file_.append(absl::StrCat(i == 0 ? "" : ",", std::llround(cells[i])));
    }
    file_.append("]]");
  }

  const Trace& trace_;
  OutputFile& file_;
  Separator separator_;
  std::map<int64_t, size_t> operations_;  // the index in the page, by index in the trace
  std::vector<int64_t> shown_operations_;
};

// Removes the text up to and including a mark from the front; returns the text before the mark.
absl::string_view take_until(absl::string_view mark, absl::string_view& text) {
  const size_t at = text.find(mark);
  ABSL_CHECK(at != text.npos) << "report.html has no " << mark;
  const absl::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

}  // namespace

absl::Status write_html(const Trace& trace, const std::string& path) {
  absl::StatusOr<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  absl::string_view page = kPageHtml;
  file->append(take_until("{{style}}", page));
  file->append(kPageStyle);
  file->append(take_until("{{data}}", page));
  Writer(trace, *file).write();
  file->append(take_until("{{script}}", page));
  file->append(kPageScript);
  file->append(page);
  return file->commit();
}

}  // namespace accelerate::simulator
