#include "accelerate/profiling/chrome_trace.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

// Viewers use doubles, so times are relative to the beginning of the day.
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
// Streams' threads stand below those of the host.
constexpr uint64_t kFirstStreamThread = 1'000'000;

std::string json_string(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

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
  if (!module.empty()) absl::StrAppend(&text, "\"Module Hierarchy\": ", json_string(module), ", ");
  if (!stack.empty()) {
    absl::StrAppend(&text, "\"Call stack\": ", json_string(absl::StrJoin(stack, ";")), ", ");
  }
  return text;
}

std::string dims(const std::vector<std::vector<int64_t>>& shapes) {
  return absl::StrCat("[",
                      absl::StrJoin(shapes, ", ",
                                    [](std::string* out, const auto& shape) {
                                      absl::StrAppend(out, "[", absl::StrJoin(shape, ", "), "]");
                                    }),
                      "]");
}

std::string list(const std::vector<std::string>& names) {
  return absl::StrCat("[",
                      absl::StrJoin(names, ", ",
                                    [](std::string* out, const auto& name) {
                                      absl::StrAppend(out, json_string(name));
                                    }),
                      "]");
}

class Writer {
 public:
  Writer(const Topology& topology, int64_t base_ns) : topology_(topology), base_ns_(base_ns) {}

  void metadata(absl::string_view what, uint64_t thread, absl::string_view name) {
    add(absl::StrFormat(R"({"ph": "M", "name": %s, "pid": %d, "tid": %d, "args": {"name": %s}})",
                        json_string(what), topology_.rank, thread, json_string(name)));
  }

  void event(const ProfileEvent& event, const ProfileEvent* parent) {
    switch (event.kind) {
      case ProfileEvent::Kind::kMemory: return memory(event);
      case ProfileEvent::Kind::kDevice:
        return slice("kernel", event, kFirstStreamThread + event.thread,
                     absl::StrFormat(R"("External id": %d, "device": %d, "stream": %d)",
                                     parent != nullptr ? parent->id : event.id, event.device_index,
                                     event.thread));
      case ProfileEvent::Kind::kAnnotation:
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
      absl::StrAppend(&text, ", \"Input Dims\": ", dims(event.shapes),
                      ", \"Input type\": ", list(event.types));
    }
    if (event.flops > 0) absl::StrAppend(&text, ", \"flops\": ", event.flops);
    return text;
  }

  void slice(const char* category, const ProfileEvent& event, uint64_t thread,
             const std::string& arguments) {
    add(absl::StrFormat(R"({"ph": "X", "cat": "%s", "name": %s, "pid": %d, "tid": %d, "ts": %s, )"
                        R"("dur": %s, "args": {%s}})",
                        category, json_string(event.name), topology_.rank, thread,
                        at(event.start_ns), microseconds(event.duration_ns()), arguments));
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

std::string chrome_trace(const std::vector<ProfileEvent>& events, const Topology& topology) {
  int64_t first_ns = events.empty() ? 0 : events.front().start_ns;
  for (const ProfileEvent& event : events) first_ns = std::min(first_ns, event.start_ns);
  Writer writer(topology, first_ns / kDayNs * kDayNs);
  writer.metadata("process_name", 0, rank_name(topology));
  std::map<uint64_t, std::string> threads;
  std::unordered_map<int64_t, size_t> forward;  // by sequence number
  for (const ProfileEvent& event : events) {
    if (event.kind == ProfileEvent::Kind::kDevice) {
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
    if (event.kind == ProfileEvent::Kind::kOperator) {
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
      absl::StrAppend(&labelled, text.substr(done, begin - done), json_string(rank_name(topology)));
      done = i = end_of_string(text, begin);
      named = true;
      continue;
    }
    i = end_of_string(text, i);
  }
  absl::StrAppend(&labelled, text.substr(done));
  return labelled;
}

bool is_whole_trace(absl::string_view text) { return nlohmann::json::accept(text); }

}  // namespace accelerate
