/// A database of SQLite in a file, as far as a writer needs one.
///
///   SqliteDatabase database("/logs/project.db");
///   SqliteTransaction transaction(database);
///   database.run("INSERT INTO metrics (step) VALUES (?)", {step});
///   transaction.commit();
///
/// It is in WAL mode where the disk can: readers and one writer do not wait for each other, and a
/// process that dies leaves what was committed. Writers of several processes wait for each other,
/// up to `patience`.
/// Errors:  std::runtime_error naming the file, what SQLite says and its code.
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
  /// Makes the file if there is none; the folder must be there.
  explicit SqliteDatabase(std::string path, absl::Duration patience = absl::Seconds(5));

  const std::string& path() const { return path_; }

  /// One statement, with its question marks replaced; its rows. Blobs are texts.
  std::vector<SqlRow> run(const std::string& sql, std::initializer_list<SqlValue> values = {});

  /// Statements without question marks or rows.
  void execute(const std::string& script);

 private:
  struct Closer {
    void operator()(sqlite3* database) const;
    void operator()(sqlite3_stmt* statement) const;
  };

  void open(absl::Duration patience);
  sqlite3_stmt* prepared(const std::string& sql);
  [[noreturn]] void fail(const std::string& doing);

  const std::string path_;
  std::unique_ptr<sqlite3, Closer> database_;
  std::map<std::string, std::unique_ptr<sqlite3_stmt, Closer>> statements_;
};

/// All or nothing of what is run while it is there; nothing unless it is committed. Others do not
/// write meanwhile.
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
