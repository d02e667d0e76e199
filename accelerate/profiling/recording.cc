#include "accelerate/profiling/recording.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

using Kind = ProfileEvent::Kind;

// The cost of one call by itself; totals add the calls inside.
struct Sums {
  int64_t self_cpu_ns = 0;
  int64_t self_device_ns = 0;
  int64_t device_ns = 0;
  int64_t self_cpu_bytes = 0;
  int64_t cpu_bytes = 0;
  int64_t self_device_bytes = 0;
  int64_t device_bytes = 0;
};

// Parents come before their children, so one walk backwards adds up whole trees.
std::vector<Sums> sum_up(const std::vector<ProfileEvent>& events) {
  std::vector<Sums> sums(events.size());
  for (size_t i = events.size(); i-- > 0;) {
    const ProfileEvent& event = events[i];
    Sums& own = sums[i];
    if (event.kind == Kind::kMemory) {
      (event.device_type == c10::kCPU ? own.self_cpu_bytes : own.self_device_bytes) = event.bytes;
    } else if (event.kind == Kind::kDevice) {
      own.self_device_ns = event.duration_ns();
    } else {
      own.self_cpu_ns += event.duration_ns();
    }
    own.device_ns += own.self_device_ns;
    own.cpu_bytes += own.self_cpu_bytes;
    own.device_bytes += own.self_device_bytes;
    if (!event.parent) continue;
    Sums& parent = sums[*event.parent];
    if (event.kind == Kind::kMemory) {
      parent.self_cpu_bytes += own.self_cpu_bytes;
      parent.self_device_bytes += own.self_device_bytes;
    } else if (event.kind == Kind::kDevice) {
      parent.self_device_ns += own.self_device_ns;
    } else {
      parent.self_cpu_ns -= event.duration_ns();
      parent.device_ns += own.device_ns;
      parent.cpu_bytes += own.cpu_bytes;
      parent.device_bytes += own.device_bytes;
    }
  }
  return sums;
}

bool is_inside_its_like(const std::vector<ProfileEvent>& events, const ProfileEvent& event) {
  for (auto parent = event.parent; parent; parent = events[*parent].parent) {
    if (events[*parent].name == event.name) return true;
  }
  return false;
}

std::string format_time(double ns) {
  if (ns >= 1e9) return absl::StrFormat("%.3fs", ns / 1e9);
  if (ns >= 1e6) return absl::StrFormat("%.3fms", ns / 1e6);
  return absl::StrFormat("%.3fus", ns / 1e3);
}

std::string format_share(int64_t part, int64_t whole) {
  if (whole == 0) return part == 0 ? "0.00%" : "NaN";
  return absl::StrFormat("%.2f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// In the spelling of torch.profiler's tables, which people compare with these.
std::string format_memory(int64_t bytes) {
  const double size = std::abs(static_cast<double>(bytes));
  if (size >= 1 << 30) return absl::StrFormat("%.2f Gb", static_cast<double>(bytes) / (1 << 30));
  if (size >= 1 << 20) return absl::StrFormat("%.2f Mb", static_cast<double>(bytes) / (1 << 20));
  if (size >= 1 << 10) return absl::StrFormat("%.2f Kb", static_cast<double>(bytes) / (1 << 10));
  return absl::StrCat(bytes, " b");
}

// "Total MFLOPs" and what to divide by: by the largest, as one scale serves the column.
std::pair<std::string, double> flops_scale(int64_t largest) {
  static constexpr const char* kUnits[] = {"FLOPs",  "KFLOPs", "MFLOPs",
                                           "GFLOPs", "TFLOPs", "PFLOPs"};
  size_t unit = 0;
  double scale = 1;
  while (unit + 1 < std::size(kUnits) && static_cast<double>(largest) / scale >= 1000) {
    scale *= 1000;
    ++unit;
  }
  return {absl::StrCat("Total ", kUnits[unit]), scale};
}

// Text that is too long ends with dots.
std::string cut(const std::string& text, int64_t width) {
  if (static_cast<int64_t>(text.size()) <= width) return text;
  if (width <= 3) return text.substr(0, static_cast<size_t>(std::max<int64_t>(width, 0)));
  return text.substr(0, static_cast<size_t>(width - 3)) + "...";
}

std::string shapes_text(const std::vector<std::vector<int64_t>>& shapes) {
  return absl::StrCat("[",
                      absl::StrJoin(shapes, ", ",
                                    [](std::string* out, const auto& shape) {
                                      absl::StrAppend(out, "[", absl::StrJoin(shape, ", "), "]");
                                    }),
                      "]");
}

using Number = std::function<double(const EventAverage&)>;

const std::map<std::string, Number>& sort_columns() {
  using Row = const EventAverage&;
  static const auto& columns = *new std::map<std::string, Number>{
      {"count", [](Row row) { return row.count; }},
      {"cpu_memory_usage", [](Row row) { return row.cpu_memory_usage; }},
      {"cpu_time", [](Row row) { return row.cpu_time(); }},
      {"cpu_time_total", [](Row row) { return row.cpu_time_total; }},
      {"device_memory_usage", [](Row row) { return row.device_memory_usage; }},
      {"device_time", [](Row row) { return row.device_time(); }},
      {"device_time_total", [](Row row) { return row.device_time_total; }},
      {"flops", [](Row row) { return row.flops; }},
      {"self_cpu_memory_usage", [](Row row) { return row.self_cpu_memory_usage; }},
      {"self_cpu_time_total", [](Row row) { return row.self_cpu_time_total; }},
      {"self_device_memory_usage", [](Row row) { return row.self_device_memory_usage; }},
      {"self_device_time_total", [](Row row) { return row.self_device_time_total; }},
  };
  return columns;
}

const Number& sort_column(const std::string& name) {
  const auto found = sort_columns().find(absl::StrReplaceAll(name, {{"cuda", "device"}}));
  TORCH_CHECK_VALUE(found != sort_columns().end(), "cannot sort by \"", name, "\"; columns are ",
                    absl::StrJoin(sort_columns(), ", ", [](std::string* out, const auto& column) {
                      absl::StrAppend(out, column.first);
                    }));
  return found->second;
}

struct Column {
  std::string title;
  std::function<std::string(const EventAverage&)> cell;
  bool left = false;
};

std::string draw(const std::vector<Column>& columns, const std::vector<EventAverage>& rows,
                 const std::string& header) {
  std::vector<std::vector<std::string>> lines(1);  // the titles, then the rows
  for (const Column& column : columns) lines[0].push_back(column.title);
  for (const EventAverage& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Column& column : columns) line.push_back(column.cell(row));
  }
  std::vector<std::string> rules;  // as wide as their columns
  for (size_t i = 0; i < columns.size(); ++i) {
    size_t width = 0;
    for (const auto& line : lines) width = std::max(width, line[i].size());
    rules.emplace_back(width, '-');
  }
  const std::string rule = absl::StrCat(absl::StrJoin(rules, "  "), "\n");
  std::string text = header.empty() ? rule : absl::StrCat(rule, header, "\n", rule);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string filling(rules[i].size() - line[i].size(), ' ');
      absl::StrAppend(&text, i > 0 ? "  " : "", columns[i].left ? line[i] : filling,
                      columns[i].left ? filling : line[i]);
    }
    absl::StrAppend(&text, "\n", &line == &lines[0] ? rule : "");
  }
  return text + rule;
}

// ---- Traces.

// Viewers use doubles, so times are relative to the beginning of the day.
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
// Streams' threads stand below those of the host.
constexpr uint64_t kFirstStreamThread = 1'000'000;

std::string rank_name(const Topology& topology) {
  return absl::StrCat("rank ", topology.rank, " of ", topology.world_size);
}

std::string distributed_info(const Topology& topology) {
  return absl::StrFormat(R"("distributedInfo": {"rank": %d, "world_size": %d})", topology.rank,
                         topology.world_size);
}

std::string microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

std::string note_arguments(const std::string& module, const std::vector<std::string>& stack) {
  std::string text;
  if (!module.empty()) absl::StrAppend(&text, "\"Module Hierarchy\": ", json_text(module), ", ");
  if (!stack.empty()) {
    absl::StrAppend(&text, "\"Call stack\": ", json_text(absl::StrJoin(stack, ";")), ", ");
  }
  return text;
}

std::string list(const std::vector<std::string>& names) {
  return absl::StrCat("[",
                      absl::StrJoin(names, ", ",
                                    [](std::string* out, const auto& name) {
                                      absl::StrAppend(out, json_text(name));
                                    }),
                      "]");
}

class Writer {
 public:
  Writer(const Topology& topology, int64_t base_ns) : topology_(topology), base_ns_(base_ns) {}

  void metadata(absl::string_view what, uint64_t thread, absl::string_view name) {
    add(absl::StrFormat(R"({"ph": "M", "name": %s, "pid": %d, "tid": %d, "args": {"name": %s}})",
                        json_text(what), topology_.rank, thread, json_text(name)));
  }

  void event(const ProfileEvent& event, const ProfileEvent* parent) {
    switch (event.kind) {
      case Kind::kMemory: return memory(event);
      case Kind::kDevice:
        return slice("kernel", event, kFirstStreamThread + event.thread,
                     absl::StrFormat(R"("External id": %d, "device": %d, "stream": %d)",
                                     parent != nullptr ? parent->id : event.id, event.device_index,
                                     event.thread));
      case Kind::kAnnotation:
        return slice("user_annotation", event, event.thread, arguments(event));
      default: return slice("cpu_op", event, event.thread, arguments(event));
    }
  }

  // An arrow from an operator to its node of the backward pass.
  void flow(const ProfileEvent& forward, const ProfileEvent& backward) {
    const auto end = [&](const char* phase, const ProfileEvent& event, const char* more) {
      add(absl::StrFormat(R"({"ph": "%s", "id": %d, "cat": "fwdbwd", "name": "fwdbwd", "pid": %d, )"
                          R"("tid": %d, "ts": %s%s})",
                          phase, forward.sequence_nr, topology_.rank, event.thread,
                          at(event.start_ns), more));
    };
    end("s", forward, "");
    end("f", backward, R"(, "bp": "e")");
  }

  std::string finish() {
    return absl::StrCat("{\n\"schemaVersion\": 1,\n", distributed_info(topology_),
                        ",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": ", base_ns_,
                        ",\n\"traceEvents\": [\n", text_, "\n]\n}\n");
  }

 private:
  void add(const std::string& event) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", event); }

  std::string at(int64_t ns) const { return microseconds(ns - base_ns_); }

  static std::string arguments(const ProfileEvent& event) {
    std::string text =
        absl::StrCat(note_arguments(event.module, event.stack), "\"External id\": ", event.id);
    if (event.sequence_nr >= 0)
      absl::StrAppend(&text, ", \"Sequence number\": ", event.sequence_nr);
    if (!event.shapes.empty()) {
      absl::StrAppend(&text, ", \"Input Dims\": ", shapes_text(event.shapes),
                      ", \"Input type\": ", list(event.types));
    }
    if (event.flops > 0) absl::StrAppend(&text, ", \"flops\": ", event.flops);
    return text;
  }

  void slice(const char* category, const ProfileEvent& event, uint64_t thread,
             const std::string& arguments) {
    add(absl::StrFormat(R"({"ph": "X", "cat": "%s", "name": %s, "pid": %d, "tid": %d, "ts": %s, )"
                        R"("dur": %s, "args": {%s}})",
                        category, json_text(event.name), topology_.rank, thread, at(event.start_ns),
                        microseconds(event.duration_ns()), arguments));
  }

  void memory(const ProfileEvent& event) {
    int64_t& held = held_[{event.device_type, event.device_index}];
    held += event.bytes;
    add(absl::StrFormat(
        R"({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": %d, )"
        R"("tid": %d, "ts": %s, "args": {"Bytes": %d, "Total Allocated": %d, )"
        R"("Device Type": %d, "Device Id": %d}})",
        topology_.rank, event.thread, at(event.start_ns), event.bytes, held,
        static_cast<int>(event.device_type), event.device_index));
  }

  const Topology& topology_;
  const int64_t base_ns_;
  std::string text_;
  std::map<std::pair<c10::DeviceType, int>, int64_t> held_;  // since the recording began
};

// The end of a JSON string that begins at `begin`: behind its closing quote.
size_t end_of_string(absl::string_view text, size_t begin) {
  size_t i = begin + 1;
  while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

}  // namespace

EventAverages::EventAverages(const std::vector<ProfileEvent>& events, const KeyAverages& grouping) {
  const std::vector<Sums> sums = sum_up(events);
  using Key =
      std::tuple<std::string, bool, std::vector<std::vector<int64_t>>, std::vector<std::string>>;
  std::map<Key, size_t> row_by_key;
  for (size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = events[i];
    // Memory that came or went inside an operator is the operator's.
    if (event.kind == Kind::kMemory && event.parent) continue;
    Key key(event.name, event.kind == Kind::kDevice, {}, {});
    if (grouping.group_by_input_shape) std::get<2>(key) = event.shapes;
    std::get<3>(key).assign(
        event.stack.begin(),
        event.stack.begin() +
            std::min<int64_t>(grouping.group_by_stack_n, static_cast<int64_t>(event.stack.size())));
    auto [found, is_new] = row_by_key.try_emplace(key, rows_.size());
    if (is_new) {
      rows_.push_back({.key = event.name,
                       .input_shapes = std::get<2>(key),
                       .stack = std::get<3>(key),
                       .is_device = event.kind == Kind::kDevice});
    }
    EventAverage& row = rows_[found->second];
    ++row.count;
    row.flops += static_cast<int64_t>(event.flops);
    row.self_cpu_time_total += sums[i].self_cpu_ns;
    row.self_device_time_total += sums[i].self_device_ns;
    row.self_cpu_memory_usage += sums[i].self_cpu_bytes;
    row.self_device_memory_usage += sums[i].self_device_bytes;
    if (!event.parent) row.is_top_level = true;
    if (event.kind == Kind::kDevice) {
      self_device_time_total_ += sums[i].self_device_ns;
    } else {
      self_cpu_time_total_ += sums[i].self_cpu_ns;
    }
    // An operator that calls itself has its inner calls in its total already.
    if (is_inside_its_like(events, event)) continue;
    if (event.kind != Kind::kDevice) row.cpu_time_total += event.duration_ns();
    row.device_time_total += sums[i].device_ns;
    row.cpu_memory_usage += sums[i].cpu_bytes;
    row.device_memory_usage += sums[i].device_bytes;
  }
}

std::string EventAverages::table(const TableOptions& options) const {
  std::vector<EventAverage> rows;
  for (const EventAverage& row : rows_) {
    if (row.is_top_level || !options.top_level_events_only) rows.push_back(row);
  }
  if (!options.sort_by.empty()) {
    const Number& number = sort_column(options.sort_by);
    std::ranges::stable_sort(rows, std::ranges::greater(), number);
  }
  if (options.row_limit >= 0 && static_cast<int64_t>(rows.size()) > options.row_limit) {
    rows.resize(static_cast<size_t>(options.row_limit));
  }
  using Row = const EventAverage&;
  using Total = int64_t EventAverage::*;
  const auto any = [&](Total total) {
    return std::ranges::any_of(rows, [&](Row row) { return row.*total != 0; });
  };
  const auto time = [](Total total) {
    return [total](Row row) { return format_time(row.*total); };
  };
  const auto memory = [](Total total) {
    return [total](Row row) { return format_memory(row.*total); };
  };
  const auto share = [](Total total, int64_t whole) {
    return [=](Row row) { return format_share(row.*total, whole); };
  };
  const int64_t cpu_total = self_cpu_time_total_;
  const int64_t device_total = self_device_time_total_;
  std::vector<Column> columns = {
      {"Name", [&](Row row) { return cut(row.key, options.max_name_column_width); }},
      {"Self CPU %", share(&EventAverage::self_cpu_time_total, cpu_total)},
      {"Self CPU", time(&EventAverage::self_cpu_time_total)},
      {"CPU total %", share(&EventAverage::cpu_time_total, cpu_total)},
      {"CPU total", time(&EventAverage::cpu_time_total)},
      {"CPU time avg", [](Row row) { return format_time(row.cpu_time()); }},
  };
  if (device_total > 0) {
    columns.push_back({"Self Device", time(&EventAverage::self_device_time_total)});
    columns.push_back(
        {"Self Device %", share(&EventAverage::self_device_time_total, device_total)});
    columns.push_back({"Device total", time(&EventAverage::device_time_total)});
    columns.push_back({"Device time avg", [](Row row) { return format_time(row.device_time()); }});
  }
  const std::pair<const char*, Total> memories[] = {
      {"CPU Mem", &EventAverage::cpu_memory_usage},
      {"Self CPU Mem", &EventAverage::self_cpu_memory_usage},
      {"Device Mem", &EventAverage::device_memory_usage},
      {"Self Device Mem", &EventAverage::self_device_memory_usage}};
  for (const auto& [title, total] : memories) {
    if (any(total)) columns.push_back({title, memory(total)});
  }
  columns.push_back({"# of Calls", [](Row row) { return absl::StrCat(row.count); }});
  if (std::ranges::any_of(rows_, [](Row row) { return !row.input_shapes.empty(); })) {
    columns.push_back({"Input Shapes",
                       [&](Row row) {
                         return cut(shapes_text(row.input_shapes), options.max_shapes_column_width);
                       },
                       /*left=*/true});
  }
  if (std::ranges::any_of(rows_, [](Row row) { return !row.stack.empty(); })) {
    columns.push_back({"Source Location",
                       [&](Row row) {
                         return cut(absl::StrJoin(row.stack, " < "), options.max_src_column_width);
                       },
                       /*left=*/true});
  }
  if (any(&EventAverage::flops)) {
    const auto [title, scale] = flops_scale(std::ranges::max(rows, {}, &EventAverage::flops).flops);
    columns.push_back({title, [scale = scale](Row row) {
                         return row.flops == 0 ? "--" : absl::StrFormat("%.3f", row.flops / scale);
                       }});
  }
  std::string text = draw(columns, rows, options.header);
  absl::StrAppend(&text, "Self CPU time total: ", format_time(cpu_total), "\n");
  if (device_total > 0) {
    absl::StrAppend(&text, "Self device time total: ", format_time(device_total), "\n");
  }
  return text;
}

std::string chrome_trace(const std::vector<ProfileEvent>& events, const Topology& topology) {
  int64_t first_ns = events.empty() ? 0 : events.front().start_ns;
  for (const ProfileEvent& event : events) first_ns = std::min(first_ns, event.start_ns);
  Writer writer(topology, first_ns / kDayNs * kDayNs);
  writer.metadata("process_name", 0, rank_name(topology));
  std::map<uint64_t, std::string> threads;
  std::unordered_map<int64_t, size_t> forward;  // by sequence number
  for (const ProfileEvent& event : events) {
    if (event.kind == Kind::kDevice) {
      threads.try_emplace(kFirstStreamThread + event.thread, absl::StrCat("stream ", event.thread));
    } else {
      threads.try_emplace(event.thread, absl::StrCat("thread ", event.thread));
    }
  }
  for (const auto& [thread, name] : threads) writer.metadata("thread_name", thread, name);
  for (size_t i = 0; i < events.size(); ++i) {
    const ProfileEvent& event = events[i];
    writer.event(event, event.parent ? &events[*event.parent] : nullptr);
    if (event.sequence_nr < 0) continue;
    if (event.kind == Kind::kOperator) {
      forward[event.sequence_nr] = i;
    } else if (const auto found = forward.find(event.sequence_nr); found != forward.end()) {
      // The engine's own event comes first, and the node inside it has the same number.
      writer.flow(events[found->second], event);
      forward.erase(found);
    }
  }
  return writer.finish();
}

std::string label_kineto_trace(absl::string_view text, const Topology& topology,
                               const TraceNotes& notes) {
  static constexpr absl::string_view kId = "\"External id\": ";
  static constexpr absl::string_view kProcess = "\"name\": \"process_name\"";
  static constexpr absl::string_view kName = "\"name\": ";
  std::string labelled;
  labelled.reserve(text.size());
  const size_t brace = text.find('{') + 1;
  absl::StrAppend(&labelled, text.substr(0, brace), "\n  ", distributed_info(topology), ",");
  size_t done = brace;
  // One pass over what may be hundreds of megabytes. Strings are skipped, whatever they contain.
  bool named = false;
  for (size_t i = brace; i < text.size();) {
    if (text[i] != '"') {
      ++i;
      continue;
    }
    if (text.substr(i, kId.size()) == kId) {
      const auto note = notes.find(
          std::strtoull(std::string(text.substr(i + kId.size(), 20)).c_str(), nullptr, 10));
      if (note != notes.end()) {
        absl::StrAppend(&labelled, text.substr(done, i - done),
                        note_arguments(note->second.module, note->second.stack));
        done = i;
      }
    } else if (!named && text.substr(i, kProcess.size()) == kProcess) {
      // Kineto names this process first; the GPUs follow.
      const size_t begin = text.find(kName, i + kProcess.size()) + kName.size();
      absl::StrAppend(&labelled, text.substr(done, begin - done), json_text(rank_name(topology)));
      done = i = end_of_string(text, begin);
      named = true;
      continue;
    }
    i = end_of_string(text, i);
  }
  absl::StrAppend(&labelled, text.substr(done));
  return labelled;
}

}  // namespace accelerate
