#include "trackers/trackio/sqlite_database.h"

#include <stdexcept>
#include <utility>

#include <sqlite3.h>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

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

}  // namespace

void SqliteDatabase::Closer::operator()(sqlite3* database) const { sqlite3_close(database); }

void SqliteDatabase::Closer::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteDatabase::SqliteDatabase(std::string path, absl::Duration timeout) : path_(std::move(path)) {
  open(timeout);
  // The older mode is as safe. It stays if the disk does not support WAL, or while other processes
  // use it.
  const char* const wal = "PRAGMA journal_mode = WAL";
  const int code = sqlite3_exec(database_.get(), wal, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK && (code & 0xff) != SQLITE_BUSY) fail("open");
  // A commit survives the process. If the machine fails, the latest commits may be lost.
  execute("PRAGMA synchronous = NORMAL");
}

void SqliteDatabase::open(absl::Duration timeout) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const int code = sqlite3_open_v2(path_.c_str(), &database, flags, nullptr);
  database_.reset(database);  // also on failure, since it holds the error
  if (code != SQLITE_OK) fail("open");
  sqlite3_extended_result_codes(database, 1);
  sqlite3_busy_timeout(database, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
}

void SqliteDatabase::fail(const std::string& doing) {
  const int code = database_ == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(database_.get());
  const std::string text =
      database_ == nullptr ? "not enough memory" : sqlite3_errmsg(database_.get());
  throw std::runtime_error(absl::StrCat("cannot ", doing, " the database ", path_, ": ", text,
                                        " (SQLite's code ", code, ")"));
}

sqlite3_stmt* SqliteDatabase::prepared(const std::string& sql) {
  const auto known = statements_.find(sql);
  if (known != statements_.end()) return known->second.get();
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(database_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) fail("use");
  statements_[sql].reset(statement);
  return statement;
}

std::vector<SqlRow> SqliteDatabase::run(const std::string& sql,
                                        std::initializer_list<SqlValue> values) {
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

void SqliteDatabase::execute(const std::string& script) {
  if (sqlite3_exec(database_.get(), script.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK)
    fail("use");
}

SqliteTransaction::SqliteTransaction(SqliteDatabase& database) : database_(database) {
  // Takes the write lock now: a reader that becomes a writer later cannot wait for other writers.
  database_.run("BEGIN IMMEDIATE");
}

SqliteTransaction::~SqliteTransaction() {
  if (committed_) return;
  try {
    database_.run("ROLLBACK");
  } catch (const std::runtime_error&) {
    // SQLite has already rolled back by itself, for example on a full disk.
  }
}

void SqliteTransaction::commit() {
  database_.run("COMMIT");
  committed_ = true;
}

}  // namespace accelerate::trackers
