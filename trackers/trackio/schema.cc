#include "trackers/trackio/schema.h"

#include <set>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

constexpr char kTables[] = R"sql(
CREATE TABLE IF NOT EXISTS metrics (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL,
  log_id TEXT, space_id TEXT);
CREATE TABLE IF NOT EXISTS configs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
  config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
CREATE TABLE IF NOT EXISTS system_metrics (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, metrics TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE TABLE IF NOT EXISTS traces (
  id TEXT PRIMARY KEY, run_id TEXT NOT NULL, timestamp TEXT NOT NULL, run_name TEXT NOT NULL,
  step INTEGER NOT NULL, key TEXT NOT NULL, trace_index INTEGER, messages TEXT NOT NULL,
  metadata TEXT NOT NULL, search_text TEXT NOT NULL, log_id TEXT, space_id TEXT);
CREATE TABLE IF NOT EXISTS alerts (
  id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
  run_name TEXT NOT NULL, title TEXT NOT NULL, text TEXT, level TEXT NOT NULL DEFAULT 'warn',
  step INTEGER, alert_id TEXT);
CREATE TABLE IF NOT EXISTS project_metadata (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS pending_uploads (
  id INTEGER PRIMARY KEY AUTOINCREMENT, space_id TEXT NOT NULL, run_id TEXT, run_name TEXT,
  step INTEGER, file_path TEXT NOT NULL, relative_path TEXT, created_at TEXT NOT NULL,
  kind TEXT NOT NULL DEFAULT 'media', digest TEXT);
)sql";

constexpr char kIndices[] = R"sql(
CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, step);
CREATE INDEX IF NOT EXISTS idx_metrics_run_timestamp ON metrics(run_id, timestamp);
CREATE UNIQUE INDEX IF NOT EXISTS idx_metrics_log_id ON metrics(log_id) WHERE log_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS idx_configs_run_name ON configs(run_name);
)sql";

std::set<std::string> columns(SqliteDatabase& database, const std::string& table) {
  std::set<std::string> names;
  for (const SqlRow& row : database.run(absl::StrCat("PRAGMA table_info(", table, ")"))) {
    names.insert(std::get<std::string>(row.at(1)));
  }
  return names;
}

}  // namespace

void make_schema(SqliteDatabase& database) {
  SqliteTransaction transaction(database);
  database.execute(kTables);
  const std::set<std::string> known = columns(database, "metrics");
  if (!known.contains("run_id") || !columns(database, "configs").contains("run_id")) {
    throw std::runtime_error(
        absl::StrCat("the database ", database.path(),
                     " is of an older Trackio, whose runs have no ids: choose another project"));
  }
  for (const char* name : {"log_id", "space_id"}) {
    if (!known.contains(name)) {
      database.execute(absl::StrCat("ALTER TABLE metrics ADD COLUMN ", name, " TEXT"));
    }
  }
  database.execute(kIndices);
  transaction.commit();
}

}  // namespace accelerate::trackers
