/// The common parts of all trackers' cases: values, steps and answers.
///
/// A case's answer lists what a tracker asked of its vendor, in the words of the vendor's Python
/// package. Trackers that stand on an interface of calls, which writes or sends, get a recorder in
/// its place; what the others wrote is read back:
///
///   json replay_dvclive(const json& in) {
///     TrackingReplay replay(in);
///     auto tracker = DvcLiveTracker(replay.setup(), std::make_unique<Recorder>(replay));
///     return replay.answer(tracker, "dvclive");
///   }
///
/// Threads: one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::golden {

/// A value of a case's `steps`. NumPy's numbers are numbers, and its arrays tensors.
/// Errors: DoesNotCompile for a Python object.
TrackerValue tracking_value(const nlohmann::json& value);
/// The same, of a dictionary.
TrackerDict tracking_dict(const nlohmann::json& value);

/// As answers write it: a tensor is {"tensor": sizes, "dtype": ..., "value": ...}.
nlohmann::json tracking_answer(const TrackerValue& value);
nlohmann::json tracking_answer(const TrackerDict& dict);

/// Whether a case of that tracker logs a value of that kind, such as "$np".
bool logs_kind(const nlohmann::json& in, const char* tracker, const char* kind);

/// The log lines of a rank.
struct LogRecorder : absl::LogSink {
  void Send(const absl::LogEntry& entry) override { texts.emplace_back(entry.text_message()); }
  std::vector<std::string> texts;
};

/// What a tracker warns of goes to the rank's log, as by Trackers. \pre A rank runs it.
class TrackingReplay {
 public:
  /// `in`: a case of kind "tracker".
  /// `files`: where the tracker's files go; null for a disk in memory.
  explicit TrackingReplay(const nlohmann::json& in, FileSystem* files = nullptr);

  /// Project "run", at 1970 plus 5 s, in the folder <DIR> of a disk in memory.
  TrackerSetup setup();

  /// The class of that name among those linked. Errors: CaseError.
  static const TrackerClass& linked_class(const std::string& name);
  simulator::SimDisk& disk() { return disk_; }
  Environment& environment() { return environment_; }

  void call(const std::string& name, nlohmann::json args = nlohmann::json::array(),
            nlohmann::json kwargs = nlohmann::json::object());
  void set(const std::string& attribute, nlohmann::json value);
  void set_item(const std::string& index, nlohmann::json value);

  /// Starts the tracker, makes the case's steps and gives the answer. `name`: of its class, among
  /// those linked.
  nlohmann::json answer(GeneralTracker& tracker, const std::string& name);

 private:
  void make_step(GeneralTracker& tracker, const nlohmann::json& step);
  nlohmann::json files();

  const nlohmann::json in_;
  nlohmann::json calls_ = nlohmann::json::array();
  const std::shared_ptr<LogRecorder> log_ = std::make_shared<LogRecorder>();
  simulator::SimDisk disk_;
  Environment environment_;
  TrackerServices services_;
};

}  // namespace accelerate::golden
