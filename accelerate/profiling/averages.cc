#include "accelerate/profiling/averages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

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
  std::vector<std::vector<std::string>> cells;
  std::vector<size_t> widths;
  for (const Column& column : columns) widths.push_back(column.title.size());
  for (const EventAverage& row : rows) {
    std::vector<std::string>& line = cells.emplace_back();
    for (size_t i = 0; i < columns.size(); ++i) {
      line.push_back(columns[i].cell(row));
      widths[i] = std::max(widths[i], line.back().size());
    }
  }
  std::vector<std::string> rules;
  for (const size_t width : widths) rules.emplace_back(width, '-');
  const std::string rule = absl::StrCat(absl::StrJoin(rules, "  "), "\n");
  std::string text;
  if (!header.empty()) absl::StrAppend(&text, rule, header, "\n");
  auto draw_line = [&](const std::vector<std::string>& line) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string filling(widths[i] - line[i].size(), ' ');
      absl::StrAppend(&text, i > 0 ? "  " : "", columns[i].left ? line[i] : filling,
                      columns[i].left ? filling : line[i]);
    }
    absl::StrAppend(&text, "\n");
  };
  absl::StrAppend(&text, rule);
  std::vector<std::string> titles;
  for (const Column& column : columns) titles.push_back(column.title);
  draw_line(titles);
  absl::StrAppend(&text, rule);
  for (const auto& line : cells) draw_line(line);
  absl::StrAppend(&text, rule);
  return text;
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
    std::stable_sort(rows.begin(), rows.end(), [&](const EventAverage& a, const EventAverage& b) {
      return number(a) > number(b);
    });
  }
  auto any = [&](const auto& has) { return std::any_of(rows_.begin(), rows_.end(), has); };
  using Row = const EventAverage&;
  const int64_t cpu_total = self_cpu_time_total_;
  const int64_t device_total = self_device_time_total_;
  std::vector<Column> columns = {
      {"Name", [&](Row row) { return cut(row.key, options.max_name_column_width); }},
      {"Self CPU %", [=](Row row) { return format_share(row.self_cpu_time_total, cpu_total); }},
      {"Self CPU", [](Row row) { return format_time(row.self_cpu_time_total); }},
      {"CPU total %", [=](Row row) { return format_share(row.cpu_time_total, cpu_total); }},
      {"CPU total", [](Row row) { return format_time(row.cpu_time_total); }},
      {"CPU time avg", [](Row row) { return format_time(row.cpu_time()); }},
  };
  if (device_total > 0) {
    columns.push_back(
        {"Self Device", [](Row row) { return format_time(row.self_device_time_total); }});
    columns.push_back({"Self Device %", [=](Row row) {
                         return format_share(row.self_device_time_total, device_total);
                       }});
    columns.push_back({"Device total", [](Row row) { return format_time(row.device_time_total); }});
    columns.push_back({"Device time avg", [](Row row) { return format_time(row.device_time()); }});
  }
  if (any([](Row row) { return row.cpu_memory_usage != 0 || row.self_cpu_memory_usage != 0; })) {
    columns.push_back({"CPU Mem", [](Row row) { return format_memory(row.cpu_memory_usage); }});
    columns.push_back(
        {"Self CPU Mem", [](Row row) { return format_memory(row.self_cpu_memory_usage); }});
  }
  if (any([](Row row) {
        return row.device_memory_usage != 0 || row.self_device_memory_usage != 0;
      })) {
    columns.push_back(
        {"Device Mem", [](Row row) { return format_memory(row.device_memory_usage); }});
    columns.push_back(
        {"Self Device Mem", [](Row row) { return format_memory(row.self_device_memory_usage); }});
  }
  columns.push_back({"# of Calls", [](Row row) { return absl::StrCat(row.count); }});
  if (any([](Row row) { return !row.input_shapes.empty(); })) {
    columns.push_back({"Input Shapes",
                       [&](Row row) {
                         return cut(shapes_text(row.input_shapes), options.max_shapes_column_width);
                       },
                       /*left=*/true});
  }
  if (any([](Row row) { return !row.stack.empty(); })) {
    columns.push_back({"Source Location",
                       [&](Row row) {
                         return cut(absl::StrJoin(row.stack, " < "), options.max_src_column_width);
                       },
                       /*left=*/true});
  }
  if (any([](Row row) { return row.flops > 0; })) {
    int64_t largest = 0;
    for (const EventAverage& row : rows_) largest = std::max(largest, row.flops);
    const auto [title, scale] = flops_scale(largest);
    columns.push_back({title, [scale = scale](Row row) {
                         return row.flops == 0 ? "--" : absl::StrFormat("%.3f", row.flops / scale);
                       }});
  }
  if (options.row_limit >= 0 && static_cast<int64_t>(rows.size()) > options.row_limit) {
    rows.resize(static_cast<size_t>(options.row_limit));
  }
  std::string text = draw(columns, rows, options.header);
  absl::StrAppend(&text, "Self CPU time total: ", format_time(cpu_total), "\n");
  if (device_total > 0) {
    absl::StrAppend(&text, "Self device time total: ", format_time(device_total), "\n");
  }
  return text;
}

}  // namespace accelerate
