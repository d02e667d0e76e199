/// An SQLite database in a file, for writers.
///
///   SqliteDatabase database("/logs/project.db");
///   SqliteTransaction transaction(database);
///   database.run("INSERT INTO metrics (step) VALUES (?)", {step});
///   transaction.commit();
///
/// It uses WAL mode if the disk supports it: readers and a writer do not wait for each other, and
/// committed rows survive the end of the process. Writers of several processes wait for each other,
/// up to `timeout`.
/// Errors:  std::runtime_error with the file, SQLite's message and its code.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

struct sqlite3;
struct sqlite3_stmt;

namespace accelerate::trackers {

using SqlValue = std::variant<std::monostate, int64_t, double, std::string>;
using SqlRow = std::vector<SqlValue>;

class SqliteDatabase {
 public:
  /// Makes the file if there is none; its folder must exist.
  explicit SqliteDatabase(std::string path, absl::Duration timeout = absl::Seconds(5));

  const std::string& path() const { return path_; }

  /// Runs one statement with `values` for its question marks. Returns its rows; blobs are texts.
  std::vector<SqlRow> run(const std::string& sql, std::initializer_list<SqlValue> values = {});

  /// Runs statements without question marks or rows.
  void execute(const std::string& script);

 private:
  struct Closer {
    void operator()(sqlite3* database) const;
    void operator()(sqlite3_stmt* statement) const;
  };

  void open(absl::Duration timeout);
  sqlite3_stmt* prepared(const std::string& sql);
  [[noreturn]] void fail(const std::string& doing);

  const std::string path_;
  std::unique_ptr<sqlite3, Closer> database_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;
};

/// Statements that run while it exists take effect when it is committed, all or none of them. Other
/// writers wait for its end.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteDatabase& database);
  ~SqliteTransaction();
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;

  void commit();

 private:
  SqliteDatabase& database_;
  bool committed_ = false;
};

}  // namespace accelerate::trackers
