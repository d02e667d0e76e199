/// Reads W&B's transaction logs as their format is described, for tests: it shares no code with
/// what writes them, and knows nothing of protobuf but its bytes.
///
/// Errors:  std::runtime_error for a file that is not such a log or a record that is not a message.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::trackers {

/// The records up to the first that is cut short or damaged.
std::vector<std::string> read_log(std::string_view bytes);

/// A field of a protobuf message: a number, or the bytes of a text or a message.
struct WireField {
  uint64_t number = 0;
  std::string bytes;
};
using WireMessage = std::multimap<int, WireField>;

WireMessage parse_message(std::string_view bytes);

/// The one field of that number. Errors: also where there are none, or several.
const WireField& only(const WireMessage& message, int field);

/// The values of items: JSON by names with dots between.
using WireItems = std::map<std::string, std::string>;

struct WireHistory {
  int64_t step = 0;
  WireItems items;
};

/// The parts of a run's log that tests look at.
struct WireRun {
  WireMessage run;
  std::vector<WireHistory> history;
  WireItems summary;
  WireItems config;
  std::vector<std::string> files;
  bool has_exit = false;
  /// For each record, in order, the number of the field that it is in.
  std::vector<int> kinds;
};

/// Errors: also where records are not numbered from 1 on.
WireRun read_run(std::string_view bytes);

}  // namespace accelerate::trackers
