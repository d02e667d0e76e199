#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/message_text.h"
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

template <typename E>
Json texts_of() {
  return rows_of(accelerate::values<E>(),
                 [](E each) -> Json { return accelerate::to_string(each); });
}

// The data of the page, as compact JSON that page_data.js reads. Names, kinds and categories are
// indices; times and bytes of a track or curve are differences to the element before, which keeps
// numbers short.
class Writer {
 public:
  Writer(const Trace& trace, OutputFile& file) : trace_(trace), file_(file) {}

  void write() {
    file_.append("{");
    field("topology", trace_.topology);
    // As text: JavaScript's numbers end at 53 bits.
    field("seed", absl::StrCat(trace_.seed));
    field("command", trace_.repeat_command);
    field("versions", trace_.versions);
    field("arithmetic", trace_.arithmetic);
    field("device", trace_.device);
    field("timeIsModelled", models_time(trace_));
    field("capacity", trace_.memory_capacity);
    field("worldSize", trace_.world_size);
    field("executedRanks", num_executed(trace_));
    field("ranksPerNode", trace_.ranks_per_node);
    field("devicesPerRank", trace_.devices_per_rank);
    field("elapsed", elapsed_ns(trace_));
    field("recordedSlices", trace_.slices.size());
    field("droppedSlices", trace_.dropped_slices);
    field("recordedSamples", trace_.memory.size());
    field("failure", failure());
    field("faults", trace_.faults);
    steps();
    field("path", path());
    field("names", trace_.names);
    field("kinds", texts_of<SliceKind>());
    field("categories", texts_of<MemoryCategory>());
    field("places", places());
    sums();
    field("tracks", tracks());
    field(
        "operations", rows_of(shown_operations_, [&](int64_t shown) -> Json {
          const TraceOperation& each = trace_.operations[shown];
          return {
              each.name,       each.group,     each.algorithm, each.bytes, rank_ranges(each.ranks),
              each.first_rank, each.last_rank, each.spread_ns};
        }));
    field("memory", memory());
    field("matrix", matrix());
    file_.append("\n}");
  }

 private:
  void field(absl::string_view name, const Json& value) {
    file_.append(absl::StrCat(separator_.next(), "\n\"", name, "\":", html_json_text(value)));
  }

  Json failure() const {
    if (!trace_.failure) return nullptr;
    const auto row = [](const FailedRanks& each) -> Json {
      return {rank_ranges(each.ranks), each.at_failure.state, each.at_failure.last_call};
    };
    return {{"message", trace_.failure->message},
            {"ranks", rows_of(failed_ranks(*trace_.failure), row)}};
  }

  void steps() {
    field("stepEnds",
          rows_of(trace_.steps, [](const TraceStep& each) -> Json { return each.end_ns; }));
    const std::optional<StepTimes> times = step_times(trace_);
    const auto spent = step_shares(trace_);
    field("steps", times ? Json{{"count", times->steps},
                                {"first", times->first_ns},
                                {"shortest", times->shortest_ns},
                                {"median", times->median_ns},
                                {"medianStep", times->median_step},
                                {"longest", times->longest_ns},
                                {"mfu", times->mfu},
                                {"samples", trace_.samples_per_step}}
                         : Json());
    field("phases", times ? named<StepPhase>(times->phase_ns) : Json::array());
    field("shares", spent ? named<StepActivity>(*spent) : Json::array());
  }

  // Numbers of an enumeration's members, each with the member's text.
  template <typename E, typename Numbers>
  static Json named(const Numbers& numbers) {
    return rows_of(accelerate::values<E>(), [&](E each) -> Json {
      return {accelerate::to_string(each), numbers[static_cast<size_t>(each)]};
    });
  }

  // The shares as [label, part, time, segments], the longest segments as [part, what, rank, start
  // in the step, time].
  Json path() const {
    const std::optional<CriticalPath> path = critical_path(trace_);
    if (!path) return nullptr;
    const auto share = [&](const PathShare& each) -> Json {
      return {path_label(trace_, each), to_string(each.part), each.total_ns, each.segments};
    };
    const auto segment = [&](const PathSegment& each) -> Json {
      return {to_string(each.part), trace_.names[each.name], each.rank,
              each.start_ns - path->start_ns, each.end_ns - each.start_ns};
    };
    return {{"step", path->step},
            {"ranks", rank_ranges(path->ranks)},
            {"shares", rows_of(path->shares, share)},
            {"longest", rows_of(path->longest, segment)}};
  }

  Json places() const {
    Json places = Json::array();
    for (int rank = 0; rank < trace_.world_size && !trace_.axes.empty(); ++rank) {
      places.push_back(place_of(trace_, rank));
    }
    return places;
  }

  void sums() {
    field("ranks", rows_of(trace_.ranks, [](const RankSummary& rank) -> Json {
            return {rank.end_ns,      rank.compute_ns,        rank.communication_ns,
                    rank.exposed_ns,  rank.memory_peak,       rank.flops,
                    rank.driver_peak, rank.allocation_retries};
          }));
    field("operators", rows_of(trace_.operators, [](const OperatorSummary& each) -> Json {
            return {each.name, each.calls, each.total_ns, each.flops, each.bytes};
          }));
    field("collectives", rows_of(trace_.collectives, [](const CollectiveSummary& each) -> Json {
            return {each.name,  each.algorithm, each.ranks,     each.calls,
                    each.bytes, each.total_ns,  each.bus_bytes, each.shared_ns};
          }));
    field("links", rows_of(trace_.links, [](const LinkSummary& each) -> Json {
            return {to_string(each.kind), each.links, each.bytes_per_second,
                    each.bytes,           each.use,   each.step_use,
                    each.worst_step_use,  each.worst, each.mean_busy_ns,
                    each.step_bytes};
          }));
    const LinkSummary* busiest = busiest_links(trace_);
    field("busiestLinks", busiest != nullptr ? busiest - trace_.links.data() : -1);
    field("peakRank", trace_.peak_rank);
    // By module: its path, then bytes by category.
    field("modules", rows_of(trace_.peak_modules, [](const ModuleMemory& each) {
            Json row = {each.module, module_pattern(each.module)};
            for (const int64_t bytes : each.bytes) row.push_back(bytes);
            return row;
          }));
  }

  // Also numbers the operations that the tracks show.
  Json tracks() {
    return rows_of(page_tracks(trace_, kMaxSlices), [this](const PageTrack& track) -> Json {
      std::vector<int64_t> numbers;
      int64_t before = 0;
      for (const PageSlice& slice : track.slices) {
        numbers.insert(numbers.end(), {slice.start_ns - before, slice.end_ns - slice.start_ns,
                                       name_and_kind(slice), detail(slice)});
        before = slice.start_ns;
      }
      return {track.rank, track.device, track.stream, std::move(numbers)};
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

  Json memory() const {
    return rows_of(page_memory(trace_, kMaxMemorySamples, kFeaturedMemorySamples),
                   [](const std::vector<MemorySample>& curve) -> Json {
                     std::vector<int64_t> numbers;
                     MemorySample before;
                     for (const MemorySample& sample : curve) {
                       numbers.push_back(sample.at_ns - before.at_ns);
                       for (size_t i = 0; i < kNumMemoryCategories; ++i) {
                         numbers.push_back(sample.bytes[i] - before.bytes[i]);
                       }
                       before = sample;
                     }
                     return {curve[0].rank, curve[0].device, std::move(numbers)};
                   });
  }

  // One view of all traffic, and one for each axis of the mesh and for groups along none.
  Json matrix() const {
    if (trace_.communication.empty()) return nullptr;
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
    const auto view = [](const std::string& name, const std::vector<double>& cells) -> Json {
      return {name, rows_of(cells, [](double bytes) -> Json { return std::llround(bytes); })};
    };
    Json views = Json::array({view("all", all)});
    for (const auto& [axis, cells] : by_axis) {
      if (trace_.axes.empty()) break;
      views.push_back(view(axis < 0 ? "no axis" : trace_.axes[axis].name, cells));
    }
    return {{"block", block}, {"size", size}, {"views", std::move(views)}};
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
