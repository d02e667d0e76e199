#include "trackers/trackio/trackio_tracker.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/json_text.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxListed = 32;  // elements of a tensor

constexpr const char* kAdjectives[] = {
    "amber", "brisk", "cedar", "dusky",    "early", "fair",  "golden", "hazel",  "ivory",  "jade",
    "keen",  "lunar", "misty", "northern", "olive", "polar", "quiet",  "rustic", "silver", "tawny"};
constexpr const char* kNouns[] = {"anchor",  "bay",    "canyon", "dune",   "ember",
                                  "fjord",   "grove",  "harbor", "island", "jetty",
                                  "kelp",    "lagoon", "marsh",  "nebula", "orchard",
                                  "prairie", "quarry", "ridge",  "summit", "tundra"};

// Names of logged values that Trackio reserves.
constexpr std::string_view kReserved[] = {"project", "run", "timestamp", "step", "time", "metrics"};

// Arguments of trackio.init that have no effect here.
constexpr const char* kUnused[] = {
    "space_id",     "server_url",       "space_storage", "dataset_id",       "bucket_id",
    "settings",     "private",          "embed",         "auto_log_gpu",     "gpu_log_interval",
    "auto_log_cpu", "cpu_log_interval", "webhook_url",   "webhook_min_level"};

std::string iso_time(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6S+00:00", time, absl::UTCTimeZone());
}

std::string file_name_of(std::string_view project) {
  std::string name;
  for (const char c : project) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || byte >= 0x80) name.push_back(c);
  }
  return name.empty() ? "default" : name;
}

void check_project(const std::string& name) {
  bool is_taken = name.starts_with("registry-");
  for (const std::string_view ending :
       {"_system", "_configs", "_traces", "_artifacts", "_artifact_versions", "_artifact_aliases",
        "_run_artifact_links"}) {
    is_taken = is_taken || (name.size() > ending.size() && name.ends_with(ending));
  }
  if (is_taken) {
    throw std::invalid_argument(absl::StrCat(
        "trackio: a project cannot be called ", name,
        ", as Trackio's own files have such names: they begin with registry- or end with "
        "_system, _configs, _traces, _artifacts or the like"));
  }
}

std::string folder_of(const Environment& environment) {
  const auto get = [&](std::string_view name) { return environment.get_or(name, ""); };
  if (const std::string folder = get("TRACKIO_DIR"); !folder.empty()) return folder;
  if (const std::string home = get("HF_HOME"); !home.empty()) return join_path(home, "trackio");
  std::string cache = get("XDG_CACHE_HOME");
  if (cache.empty() && !get("HOME").empty()) cache = join_path(get("HOME"), ".cache");
  return cache.empty() ? "" : join_path(cache, "huggingface/trackio");
}

ordered_json histogram_json(const std::vector<double>& values) {
  const Histogram histogram = make_histogram(values);
  return {{"_type", "trackio.histogram"}, {"bins", histogram.edges}, {"values", histogram.counts}};
}

ordered_json metric(const TrackerValue& value) {
  const auto* const tensor = value.get_if<TensorValue>();
  if (tensor == nullptr) return json_value(value);
  if (tensor->values.size() > kMaxListed) return histogram_json(tensor->values);
  if (tensor->values.size() != 1) return json_value(value);
  return json_value(TrackerValue(TensorValue{.dtype = tensor->dtype, .values = tensor->values}));
}

// ---- The database.

// How long one writer waits for the others.
constexpr int kBusyMilliseconds = 5000;

using SqlValue = std::variant<std::monostate, int64_t, double, std::string>;
using SqlRow = std::vector<SqlValue>;

int bind(sqlite3_stmt* statement, int place, const SqlValue& value) {
  return std::visit(
      absl::Overload([&](std::monostate) { return sqlite3_bind_null(statement, place); },
                     [&](int64_t number) { return sqlite3_bind_int64(statement, place, number); },
                     [&](double number) { return sqlite3_bind_double(statement, place, number); },
                     [&](const std::string& text) {
                       return sqlite3_bind_text64(statement, place, text.data(), text.size(),
                                                  SQLITE_TRANSIENT, SQLITE_UTF8);
                     }),
      value);
}

SqlValue column(sqlite3_stmt* statement, int index) {
  switch (sqlite3_column_type(statement, index)) {
    case SQLITE_NULL: return {};
    case SQLITE_INTEGER: return int64_t{sqlite3_column_int64(statement, index)};
    case SQLITE_FLOAT: return sqlite3_column_double(statement, index);
    default: {
      const auto* const bytes = static_cast<const char*>(sqlite3_column_blob(statement, index));
      const auto size = static_cast<size_t>(sqlite3_column_bytes(statement, index));
      return size == 0 ? std::string() : std::string(bytes, size);
    }
  }
}

// An SQLite database in a file, for writers. It uses WAL mode if the disk supports it: readers and
// a writer do not wait for each other, and committed rows survive the end of the process. Writers
// of several processes wait for each other, for five seconds. Errors: std::runtime_error with the
// file, SQLite's message and its code.
class SqliteDatabase {
 public:
  // Makes the file if there is none; its folder must exist.
  explicit SqliteDatabase(std::string path) : path_(std::move(path)) {
    sqlite3* database = nullptr;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    const int opened = sqlite3_open_v2(path_.c_str(), &database, flags, nullptr);
    database_.reset(database);  // also on failure, since it holds the error
    if (opened != SQLITE_OK) fail("open");
    sqlite3_extended_result_codes(database, 1);
    sqlite3_busy_timeout(database, kBusyMilliseconds);
    // The older mode is as safe. It stays if the disk does not support WAL, or while other
    // processes use it.
    const char* const wal = "PRAGMA journal_mode = WAL";
    const int code = sqlite3_exec(database_.get(), wal, nullptr, nullptr, nullptr);
    if (code != SQLITE_OK && (code & 0xff) != SQLITE_BUSY) fail("open");
    // A commit survives the process. If the machine fails, the latest commits may be lost.
    execute("PRAGMA synchronous = NORMAL");
  }

  const std::string& path() const { return path_; }

  // Runs one statement with `values` for its question marks. Returns its rows; blobs are texts.
  std::vector<SqlRow> run(const std::string& sql, std::initializer_list<SqlValue> values = {}) {
    sqlite3_stmt* const statement = prepared(sql);
    int place = 0;
    for (const SqlValue& value : values) {
      if (bind(statement, ++place, value) != SQLITE_OK) fail("use");
    }
    std::vector<SqlRow> rows;
    int code = SQLITE_OK;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
      SqlRow& row = rows.emplace_back();
      for (int i = 0; i < sqlite3_column_count(statement); ++i) row.push_back(column(statement, i));
    }
    if (code != SQLITE_DONE) {
      // The error code and text survive the reset.
      sqlite3_reset(statement);
      fail("use");
    }
    sqlite3_reset(statement);
    return rows;
  }

  // Runs statements without question marks or rows.
  void execute(const std::string& script) {
    if (sqlite3_exec(database_.get(), script.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
      fail("use");
  }

  // Runs statements that take effect together, all or none of them. Other writers wait for the end.
  template <typename Statements>
  void transact(const Statements& statements) {
    // Takes the write lock now: a reader that becomes a writer later cannot wait for other writers.
    run("BEGIN IMMEDIATE");
    try {
      statements();
      run("COMMIT");
    } catch (...) {
      try {
        run("ROLLBACK");
      } catch (const std::runtime_error&) {
        // SQLite has already rolled back by itself, for example on a full disk.
      }
      throw;
    }
  }

 private:
  struct Closer {
    void operator()(sqlite3* database) const { sqlite3_close(database); }
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  sqlite3_stmt* prepared(const std::string& sql) {
    const auto known = statements_.find(sql);
    if (known != statements_.end()) return known->second.get();
    sqlite3_stmt* statement = nullptr;
    const int code = sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                        SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    if (code != SQLITE_OK) fail("use");
    statements_[sql].reset(statement);
    return statement;
  }

  [[noreturn]] void fail(const std::string& doing) {
    const int code =
        database_ == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(database_.get());
    const std::string text =
        database_ == nullptr ? "not enough memory" : sqlite3_errmsg(database_.get());
    throw std::runtime_error(absl::StrCat("cannot ", doing, " the database ", path_, ": ", text,
                                          " (SQLite's code ", code, ")"));
  }

  const std::string path_;
  std::unique_ptr<sqlite3, Closer> database_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;
};

std::string text_of(const SqlValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text == nullptr ? "" : *text;
}

// The tables of a project, as Trackio 0.36 makes them. Those of a run are written here; the others
// are empty, for Trackio's own readers. Mirrors: trackio sqlite_storage.py, SQLiteStorage.init_db.
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

// Makes the tables that are missing. Errors: std::runtime_error for a database of a Trackio that
// did not give runs an id yet.
void make_schema(SqliteDatabase& database) {
  database.transact([&] {
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
  });
}

class TrackioTracker final : public GeneralTracker {
 public:
  explicit TrackioTracker(const TrackerSetup& setup)
      : services_(setup.services),
        project_(file_name_of(setup.project_name)),
        start_time_(iso_time(setup.time)),
        fresh_id_(sha256(absl::StrCat(project_, setup.random_bits, start_time_, services_.rank))
                      .substr(0, 32)),
        folder_(folder_of(services_.environment)) {
    check_project(project_);
    read_kwargs(setup);
  }

  void start() override {
    for (const std::string& remark : remarks_) services_.warn(remark);
    open();
    services_.info(
        absl::StrCat("trackio: the run ", name_, " is kept in ", database_->path(), "."));
  }

  void store_init_configuration(const TrackerDict& values) override {
    config_.update(json_value(values));
    config_changed_ = config_changed_ || !values.empty();
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    ordered_json metrics = ordered_json::object();
    for (const auto& [name, value] : values) metrics[name] = metric(value);
    add(metrics, step);
  }

  void log_images(const TrackerImages& images, const TrackerStep& step) override {
    open();  // the paths contain the run's name
    const std::string folder =
        absl::StrCat(project_, "/", safe_path(name_), "/", step.step.value_or(next_step_));
    ordered_json metrics = ordered_json::object();
    for (const auto& [name, of_name] : images) {
      for (size_t i = 0; i < of_name.size(); ++i) {
        const std::string png = encode_png(of_name[i]);
        const std::string path = absl::StrCat(folder, "/", sha256(png).substr(0, 32), ".png");
        throw_if_error(
            write_file(services_.files, join_path(join_path(folder_, "media"), path), png));
        metrics[of_name.size() == 1 ? name : absl::StrCat(name, "/", i)] = {
            {"_type", "trackio.image"}, {"file_path", path}, {"caption", nullptr}};
      }
    }
    add(metrics, step);
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    ordered_json rows = ordered_json::array();
    for (const TrackerList& row : table.rows) {
      ordered_json& named = rows.emplace_back(ordered_json::object());
      for (size_t i = 0; i < row.size(); ++i) {
        named[i < table.columns.size() ? table.columns[i] : absl::StrCat(i)] = json_value(row[i]);
      }
    }
    ordered_json metrics = ordered_json::object();
    metrics[name] = {{"_type", "trackio.table"}, {"_value", rows}};
    add(metrics, step);
  }

  void log_histograms(const TrackerDict& tensors, const TrackerStep& step) override {
    ordered_json metrics = ordered_json::object();
    for (const auto& [name, value] : tensors) {
      const auto* const tensor = value.get_if<TensorValue>();
      if (tensor == nullptr) {
        throw std::invalid_argument(
            absl::StrCat("trackio: ", name, " is not a tensor, so it has no histogram"));
      }
      metrics[name] = histogram_json(tensor->values);
    }
    add(metrics, step);
  }

  void flush() override {
    if (finished_) return;
    open();
    if (!rows_.empty() || config_changed_) write([] {});
  }

  void finish() override {
    flush();
    finished_ = true;
    database_.reset();
  }

 private:
  struct Row {
    std::string time;
    std::optional<int64_t> step;  // absent until the run is known
    std::string metrics;          // JSON
  };

  void read_kwargs(const TrackerSetup& setup) {
    InitKwargs kwargs("trackio", setup.init_kwargs);
    given_name_ = kwargs.text("name").value_or("");
    const auto group = kwargs.text("group");
    resume_ = kwargs.text("resume").value_or("never");
    if (resume_ == "must" && given_name_.empty()) {
      kwargs.refuse("resume", "\"must\" only where there is a name");
    }
    if (resume_ != "never" && resume_ != "allow" && resume_ != "must") {
      kwargs.refuse("resume", "\"never\", \"allow\" or \"must\"");
    }
    config_ = json_value(kwargs.dict("config").value_or(TrackerDict()));
    for (const auto& [name, value] : config_.items()) {
      if (name.starts_with('_')) kwargs.refuse("config", "without names that begin with _");
    }
    config_["_Username"] = nullptr;
    config_["_Created"] = start_time_;
    config_["_Group"] = group ? ordered_json(*group) : ordered_json();
    for (const char* name : kUnused) {
      if (kwargs.any(name)) remarks_.push_back(absl::StrCat("trackio: `", name, "` is not used."));
    }
    for (const char* name : {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"}) {
      if (!services_.environment.get_or(name, "").empty()) {
        remarks_.push_back(absl::StrCat("trackio: ", name, " is not used: runs are kept locally."));
      }
    }
    kwargs.finish();
  }

  // Makes the database and the run unless that is done.
  void open() {
    if (database_) return;
    if (!services_.is_real) {
      throw std::runtime_error("trackio: its database cannot be used in a simulation");
    }
    if (folder_.empty()) {
      throw std::runtime_error(
          "trackio: neither TRACKIO_DIR nor HOME is set, so there is no folder for runs");
    }
    throw_if_error(services_.files.make_directories(folder_));
    database_.emplace(join_path(folder_, absl::StrCat(project_, ".db")));
    try {
      make_schema(*database_);
      write([this] { find_run(); });
    } catch (...) {
      database_.reset();
      throw;
    }
  }

  void find_run() {
    run_id_ = fresh_id_;
    next_step_ = 0;
    if (resume_ != "never" && !given_name_.empty()) {
      const auto found = database_->run(
          "SELECT run_id FROM (SELECT run_id, run_name, created_at AS since FROM configs UNION ALL "
          "SELECT run_id, run_name, timestamp FROM metrics) WHERE run_name = ? "
          "ORDER BY since DESC LIMIT 1",
          {given_name_});
      if (!found.empty()) {
        take_up(text_of(found[0][0]));
      } else if (resume_ == "must") {
        throw std::runtime_error(absl::StrCat("trackio: there is no run ", given_name_,
                                              " to be resumed in ", database_->path()));
      }
    }
    name_ = given_name_.empty() ? new_name() : given_name_;
  }

  void take_up(const std::string& run_id) {
    run_id_ = run_id;
    const auto steps = database_->run("SELECT MAX(step) FROM metrics WHERE run_id = ?", {run_id});
    if (const auto* last = std::get_if<int64_t>(&steps.at(0).at(0))) next_step_ = *last + 1;
    const auto configs = database_->run("SELECT config FROM configs WHERE run_id = ?", {run_id});
    if (configs.empty()) return;
    ordered_json config = ordered_json::parse(text_of(configs[0][0]), nullptr, false);
    if (!config.is_object()) return;
    config.update(config_);
    config_ = std::move(config);
  }

  std::string new_name() {
    for (size_t i = 0;; ++i) {
      const std::string name =
          absl::StrCat(kAdjectives[i % std::size(kAdjectives)], "-",
                       kNouns[(i / std::size(kAdjectives) + i) % std::size(kNouns)], "-", i);
      const bool is_taken =
          !database_->run("SELECT 1 FROM configs WHERE run_name = ? LIMIT 1", {name}).empty() ||
          !database_->run("SELECT 1 FROM metrics WHERE run_name = ? LIMIT 1", {name}).empty();
      if (!is_taken) return name;
    }
  }

  void settle(Row& row) {
    if (!row.step) row.step = next_step_;
    next_step_ = std::max(next_step_, *row.step + 1);
  }

  // Writes the waiting rows behind what `first` does, all or nothing.
  template <typename First>
  void write(const First& first) {
    uint64_t number = logged_;
    database_->transact([&] {
      first();
      if (config_changed_) {
        database_->run(
            "INSERT OR REPLACE INTO configs (run_id, run_name, config, created_at) "
            "VALUES (?, ?, ?, ?)",
            {run_id_, name_, json_text(config_), start_time_});
      }
      for (Row& row : rows_) {
        settle(row);
        // With the id, Trackio does not take a row twice when it uploads runs.
        database_->run(
            "INSERT INTO metrics (timestamp, run_id, run_name, step, metrics, log_id) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            {row.time, run_id_, name_, *row.step, row.metrics,
             absl::StrFormat("%s%012x", fresh_id_.substr(0, 20), number++)});
      }
    });
    logged_ = number;
    rows_.clear();
    bytes_ = 0;
    config_changed_ = false;
  }

  void add(const ordered_json& metrics, const TrackerStep& step) {
    if (finished_) throw std::logic_error("trackio: the run has finished");
    if (!step.kwargs.empty()) {
      throw std::invalid_argument(
          absl::StrCat("trackio: log has no argument ", step.kwargs[0].first));
    }
    Row row{.time = iso_time(step.time), .step = step.step};
    ordered_json renamed = ordered_json::object();
    for (const auto& [name, value] : metrics.items()) {
      const bool is_reserved =
          name.starts_with("__") ||
          std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved);
      if (is_reserved && !std::exchange(said_reserved_, true)) {
        services_.warn(absl::StrCat("trackio: ", name,
                                    " is reserved by Trackio and is logged as __", name,
                                    "; so are all other reserved names."));
      }
      renamed[is_reserved ? absl::StrCat("__", name) : name] = value;
    }
    row.metrics = json_text(renamed);
    if (bytes_ + row.metrics.size() > kMaxBytes) {
      throw std::runtime_error(absl::StrCat("trackio: a record is lost: ", bytes_,
                                            " bytes wait already to be written to ", project_,
                                            ".db"));
    }
    bytes_ += row.metrics.size();
    if (database_) settle(row);
    rows_.push_back(std::move(row));
  }

  const TrackerServices& services_;
  const std::string project_;  // as files are named
  const std::string start_time_;
  std::string fresh_id_;
  std::string folder_;
  std::string given_name_;
  std::string resume_;
  std::vector<std::string> remarks_;
  nlohmann::ordered_json config_ = nlohmann::ordered_json::object();

  std::optional<SqliteDatabase> database_;
  std::string name_;
  std::string run_id_;
  int64_t next_step_ = 0;
  std::vector<Row> rows_;  // not written yet
  size_t bytes_ = 0;       // of those
  uint64_t logged_ = 0;    // rows ever written
  bool config_changed_ = true;
  bool said_reserved_ = false;
  bool finished_ = false;
};

const TrackerRegistration kRegistration(
    {.name = "trackio",
     .requires_logging_directory = false,
     .main_process_only = false,
     .tracker = make_trackio_tracker,
     .unavailable = [](const TrackerServices& services) {
       return services.is_real ? "" : "its database cannot be used in a simulation";
     }});

}  // namespace

std::unique_ptr<GeneralTracker> make_trackio_tracker(const TrackerSetup& setup) {
  return std::make_unique<TrackioTracker>(setup);
}

}  // namespace accelerate::trackers
