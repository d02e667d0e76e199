/// Reads TensorBoard's event files, from the description of their format alone: nothing of what
/// writes them is used.
///
///   for (const auto& [tag, points] : read_scalars(files, "out/mnist")) { ... }
///
/// Every checksum is checked. A file ends where its records end, or before the first one that is
/// torn or damaged, as for TensorBoard.
/// Errors:  std::runtime_error for what cannot be read, and for a whole record that is not an
///          event.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/platform/file_system.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// A tag's value in an event.
struct EventValue {
  struct Image {
    int64_t height = 0;
    int64_t width = 0;
    int64_t colorspace = 0;
    std::string png;
  };
  struct Histogram {
    double min = 0;
    double max = 0;
    double num = 0;
    double sum = 0;
    double sum_squares = 0;
    std::vector<double> limits;
    std::vector<double> counts;
  };

  std::string tag;
  std::string plugin;
  std::string plugin_content;
  /// One of them is set, whatever the style of the value.
  std::optional<double> scalar;
  std::optional<std::string> text;
  std::optional<Image> image;
  std::optional<Histogram> histogram;
};

struct EventRecord {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  /// 1 is a start, which hides events of this step and later ones before it; 0 is none.
  int64_t session_status = 0;
  std::vector<EventValue> values;
};

struct EventFileContents {
  std::vector<EventRecord> events;
  /// Where the last whole record ends.
  size_t whole_bytes = 0;
  /// The defect of the bytes that follow; empty if there is none.
  std::string damage;
};

EventFileContents parse_event_file(std::string_view bytes);

/// The names of a folder's event files, in the order in which they are read.
std::vector<std::string> event_file_names(FileSystem& files, const std::string& folder);

/// All events of a run that count: of all files of a folder, without what later starts hide.
std::vector<EventRecord> read_events(FileSystem& files, const std::string& folder);

/// The curves of a run, (step, value) by tag.
std::map<std::string, std::vector<std::pair<int64_t, double>>> read_scalars(
    FileSystem& files, const std::string& folder);

/// The hyperparameters at the start of a session: the contents of the plug-in's data.
std::map<std::string, TrackerValue> parse_hparams(std::string_view plugin_content);

/// A field of a serialised protocol buffer.
struct ProtoField {
  int number = 0;
  /// The value of a varint, or of a field of 4 or 8 bytes.
  uint64_t bits = 0;
  /// The contents of a field with a length.
  std::string_view bytes;
};

/// Fields in the order in which they stand. Errors: std::runtime_error.
std::vector<ProtoField> parse_proto(std::string_view bytes);

}  // namespace accelerate::trackers
