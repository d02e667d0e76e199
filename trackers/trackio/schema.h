/// The tables of a Trackio project, as Trackio 0.36 makes them.
///
/// Those of a run are written here; the others are empty, for Trackio's own readers.
/// Errors:  std::runtime_error; also for a database of a Trackio that did not give runs an id yet.
/// Threads: one.
/// Mirrors: trackio sqlite_storage.py, SQLiteStorage.init_db.
#pragma once

#include "trackers/trackio/sqlite_database.h"

namespace accelerate::trackers {

/// Makes what is missing.
void make_schema(SqliteDatabase& database);

}  // namespace accelerate::trackers
