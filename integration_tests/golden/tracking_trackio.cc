// The tracker "trackio" keeps runs in a database. What it says is asked in SQL, and told as the
// calls of Trackio's package that would have led there.
#include "integration_tests/golden/trackers.h"

#include <sqlite3.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/platform/host_files.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/tracking_replay.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;

Rows ask(const std::string& path, const std::string& sql) {
  Rows rows;
  const auto add = [](void* out, int count, char** values, char** /*names*/) {
    auto& row = static_cast<Rows*>(out)->emplace_back();
    for (int i = 0; i < count; ++i) row.emplace_back(values[i] == nullptr ? "" : values[i]);
    return 0;
  };
  sqlite3* database = nullptr;
  const bool done =
      sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK &&
      sqlite3_exec(database, sql.c_str(), add, &rows, nullptr) == SQLITE_OK;
  sqlite3_close(database);
  if (!done) throw CaseError("trackio: the database cannot be asked " + sql);
  return rows;
}

json call(const char* name, json args, json kwargs) {
  return {{"call", name}, {"args", std::move(args)}, {"kwargs", std::move(kwargs)}};
}

// Trackio's own keys begin with an underscore.
json without_own_keys(const json& config) {
  json rest = json::object();
  for (const auto& [name, value] : config.items()) {
    if (!name.starts_with('_')) rest[name] = value;
  }
  return rest;
}

json calls_of(const std::string& project, const std::string& path) {
  json calls = json::array({call("trackio.init", json::array(), {{"project", project}})});
  for (const auto& row : ask(path, "SELECT config FROM configs")) {
    const json config = without_own_keys(json::parse(row[0]));
    if (config.empty()) continue;
    calls.push_back(call("trackio.config.update", json::array({config}), json::object()));
  }
  for (const auto& row : ask(path, "SELECT metrics, step FROM metrics ORDER BY id")) {
    calls.push_back(call("trackio.init().log", json::array({json::parse(row[0])}),
                         {{"step", std::stoll(row[1])}}));
  }
  return calls;
}

}  // namespace

json replay_trackio(const json& in) {
  // SQLite opens its file itself.
  const TemporaryFolder folder;
  HostFiles files(/*parallelism=*/1);
  TrackingReplay replay(in, &files);
  replay.environment().set("TRACKIO_DIR", folder.path());
  const auto tracker = replay.linked_class("trackio").tracker(replay.setup());
  json answer = replay.answer(*tracker, "trackio");
  tracker->flush();
  const std::string project = replay.setup().project_name;
  answer["calls"] = calls_of(project, folder.path(project + ".db"));
  return answer;
}

}  // namespace accelerate::golden
