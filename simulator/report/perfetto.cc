#include <algorithm>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/message_text.h"
#include "simulator/report/output_file.h"
#include "simulator/report/report.h"

namespace accelerate::simulator {
namespace {

// Viewers show process and thread 0 as the idle process. Ranks and streams start at 0, and the
// host's track is stream -1.
int process_of(int rank) { return rank + 1; }
int thread_of(int stream) { return stream + 2; }

std::string place(int rank, int stream) {
  return absl::StrCat("\"pid\":", process_of(rank), ",\"tid\":", thread_of(stream));
}

// By operation, the indices of its members' slices in the order of start, rank and stream, without
// their waits. Empty if none was kept.
std::vector<std::vector<uint32_t>> slices_of_operations(const Trace& trace) {
  std::vector<std::vector<uint32_t>> slices(trace.operations.size());
  for (size_t i = 0; i < trace.slices.size(); ++i) {
    const int64_t operation = trace.slices[i].operation;
    if (trace.slices[i].kind == SliceKind::kWait) continue;
    if (operation >= 0) slices[operation].push_back(static_cast<uint32_t>(i));
  }
  for (std::vector<uint32_t>& of_one : slices) {
    std::ranges::sort(of_one, {}, [&trace](uint32_t index) {
      const Slice& slice = trace.slices[index];
      return std::tie(slice.start_ns, slice.rank, slice.stream);
    });
  }
  return slices;
}

class Writer {
 public:
  Writer(const Trace& trace, OutputFile& file) : trace_(trace), file_(file) {
    for (const std::string& name : trace.names) names_.push_back(json_string(name));
  }

  void write() {
    file_.append("{\"displayTimeUnit\":\"ns\",\"otherData\":{");
    file_.append(absl::StrCat("\"topology\":", json_string(trace_.topology), ",\"seed\":\"",
                              trace_.seed, "\",\"repeat\":", json_string(trace_.repeat_command),
                              ",\"device\":", json_string(trace_.device),
                              ",\"dropped_slices\":", trace_.dropped_slices, "},\n"));
    file_.append("\"traceEvents\":[");
    write_names();
    for (const Slice& slice : trace_.slices) write_slice(slice);
    write_flows();
    for (const MemorySample& sample : trace_.memory) write_memory(sample);
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
          absl::StrCat("rank ", rank, " (node ", rank / trace_.ranks_per_node, ")");
      name_event(rank, "process_name", "", absl::StrCat("\"name\":\"", name, "\""));
      name_event(rank, "process_sort_index", "", absl::StrCat("\"sort_index\":", rank));
    }
    std::set<std::pair<int, int>> streams;
    for (const Slice& slice : trace_.slices) streams.insert({slice.rank, slice.stream});
    for (const auto& [rank, stream] : streams) {
      const std::string thread = absl::StrCat(",\"tid\":", thread_of(stream));
      const std::string name = stream == kHostStream ? "host" : absl::StrCat("stream ", stream);
      name_event(rank, "thread_name", thread, absl::StrCat("\"name\":\"", name, "\""));
      name_event(rank, "thread_sort_index", thread,
                 absl::StrCat("\"sort_index\":", thread_of(stream)));
    }
  }

  void write_slice(const Slice& slice) {
    std::string text = absl::StrCat("\"ph\":\"X\",\"name\":", names_[slice.name], ",\"cat\":\"",
                                    to_string(slice.kind), "\",", place(slice.rank, slice.stream),
                                    ",\"ts\":", microseconds(slice.start_ns),
                                    ",\"dur\":", microseconds(slice.end_ns - slice.start_ns));
    if (slice.operation >= 0) {
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
    std::vector<std::vector<uint32_t>> slices = slices_of_operations(trace_);
    for (size_t operation = 0; operation < trace_.operations.size(); ++operation) {
      std::vector<uint32_t>& path = slices[operation];
      if (path.size() < 2) continue;
      if (trace_.slices[path[0]].kind == SliceKind::kMessage) sender_first(operation, path);
      int64_t at_ns = 0;
      for (size_t i = 0; i < path.size(); ++i) {
        const Slice& slice = trace_.slices[path[i]];
        // An arrow never goes back in time, and its end lies within the slice.
        at_ns = std::max(std::min(at_ns, slice.end_ns - 1), slice.start_ns);
        const char* phase = i == 0 ? "s" : i + 1 == path.size() ? "f" : "t";
        event(absl::StrCat(
            "\"ph\":\"", phase, "\",\"name\":", names_[trace_.operations[operation].name],
            ",\"cat\":\"flow\",\"id\":", operation + 1, ",", place(slice.rank, slice.stream),
            ",\"ts\":", microseconds(at_ns), i == 0 ? "" : ",\"bp\":\"e\""));
      }
    }
  }

  void sender_first(size_t operation, std::vector<uint32_t>& path) const {
    const std::vector<int>& ranks = trace_.operations[operation].ranks;
    if (ranks.empty()) return;
    std::stable_partition(path.begin(), path.end(), [&](uint32_t index) {
      return trace_.slices[index].rank == ranks.front();
    });
  }

  void write_memory(const MemorySample& sample) {
    std::string values;
    for (size_t i = 0; i < kNumMemoryCategories; ++i) {
      absl::StrAppend(&values, i == 0 ? "" : ",", "\"", to_string(static_cast<MemoryCategory>(i)),
                      "\":", sample.bytes[i]);
    }
    event(absl::StrCat("\"ph\":\"C\",\"name\":\"memory\",\"pid\":", process_of(sample.rank),
                       ",\"ts\":", microseconds(sample.at_ns), ",\"args\":{", values, "}"));
  }

  const Trace& trace_;
  OutputFile& file_;
  std::vector<std::string> names_;  // as JSON
  Separator separator_;
};

}  // namespace

absl::Status write_perfetto(const Trace& trace, const std::string& path) {
  absl::StatusOr<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  Writer(trace, *file).write();
  return file->commit();
}

}  // namespace accelerate::simulator
