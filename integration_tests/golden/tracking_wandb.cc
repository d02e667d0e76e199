// The tracker "wandb" keeps runs in files. What they say is read by the tests' own reader, and told
// as the calls of W&B's package that would have led there.
#include "integration_tests/golden/trackers.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/file_system.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/tracking_replay.h"
#include "trackers/testing/png_reader.h"
#include "trackers/testing/wandb_log_reader.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using trackers::WireItems;

constexpr char kParent[] = "/sim/wandb";

json call(const char* name, json args, json kwargs) {
  return {{"call", name}, {"args", std::move(args)}, {"kwargs", std::move(kwargs)}};
}

json value_of(const std::string& text) {
  if (text == "NaN") return {{"$float", "nan"}};
  if (text == "Infinity") return {{"$float", "inf"}};
  if (text == "-Infinity") return {{"$float", "-inf"}};
  return json::parse(text);
}

// Names with dots are paths; W&B's own begin with an underscore.
json values_of(const WireItems& items) {
  json values = json::object();
  for (const auto& [path, text] : items) {
    if (absl::StartsWith(path, "_")) continue;
    json* place = &values;
    for (const absl::string_view name : absl::StrSplit(path, '.')) {
      place = &(*place)[std::string(name)];
    }
    *place = value_of(text);
  }
  return values;
}

class RunReader {
 public:
  explicit RunReader(FileSystem& files) : files_(files) {
    const std::string parent = join_path(kParent, "wandb");
    folder_ = join_path(parent, value_or_throw(files_.list(parent)).at(0));
    for (const std::string& name : value_or_throw(files_.list(folder_))) {
      if (absl::EndsWith(name, ".wandb")) run_ = trackers::read_run(read(name));
    }
  }

  json calls() {
    calls_ = json::array({call("wandb.init", json::array(), init_kwargs())});
    if (const json config = values_of(run_.config); !config.empty()) {
      calls_.push_back(call("wandb.config.update", json::array({config}), json::object()));
    }
    for (const trackers::WireHistory& history : run_.history) {
      json values = values_of(history.items);
      for (json& value : values) make_media(value);
      calls_.push_back(
          call("wandb.init().log", json::array({std::move(values)}), {{"step", history.step}}));
    }
    if (run_.has_exit) calls_.push_back(call("wandb.init().finish", json::array(), json::object()));
    return calls_;
  }

 private:
  std::string read(const std::string& name) const {
    return value_or_throw(read_file(files_, join_path(folder_, name)));
  }

  json init_kwargs() const {
    static constexpr std::pair<int, const char*> kTexts[] = {
        {2, "entity"}, {3, "project"}, {6, "group"}, {7, "job_type"}, {8, "name"}, {9, "notes"}};
    json kwargs = json::object();
    for (const auto& [field, name] : kTexts) {
      if (run_.run.contains(field)) kwargs[name] = only(run_.run, field).bytes;
    }
    const auto [first, last] = run_.run.equal_range(10);
    for (auto tag = first; tag != last; ++tag) kwargs["tags"].push_back(tag->second.bytes);
    return kwargs;
  }

  // Puts the objects that W&B's package would have been given into the place of what is written.
  void make_media(json& value) {
    if (!value.is_object() || !value.contains("_type")) return;
    if (value["_type"] == "images/separated") {
      json objects = json::array();
      for (const json& path : value["filenames"]) {
        const TrackerImage image =
            trackers::decode_png(read(join_path("files", path.get<std::string>())));
        json array = {{"ndarray", {image.height, image.width, image.channels}}, {"dtype", "uint8"}};
        calls_.push_back(call("wandb.Image", json::array({std::move(array)}), json::object()));
        objects.push_back({{"object", "wandb.Image()"}});
      }
      value = std::move(objects);
    } else if (value["_type"] == "table-file") {
      json table = json::parse(read(join_path("files", value["path"].get<std::string>())));
      calls_.push_back(call("wandb.Table", json::array(), std::move(table)));
      value = {{"object", "wandb.Table()"}};
    }
  }

  FileSystem& files_;
  std::string folder_;
  trackers::WireRun run_;
  json calls_;
};

}  // namespace

json replay_wandb(const json& in) {
  TrackingReplay replay(in);
  TrackerSetup setup = replay.setup();
  setup.init_kwargs.emplace_back("dir", kParent);
  const auto tracker = replay.linked_class("wandb").tracker(setup);
  json answer = replay.answer(*tracker, "wandb");
  tracker->flush();
  answer["calls"] = RunReader(replay.disk()).calls();
  return answer;
}

}  // namespace accelerate::golden
