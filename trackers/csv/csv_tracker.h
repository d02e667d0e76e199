/// Writes a table for spreadsheets and pandas.read_csv: a row for each `log`, a column for each
/// name.
///
///   Accelerator accelerator({.log_with = {"csv"}, .project_dir = "logs"});
///
///   logs/mnist/metrics.csv     run,step,time,loss,lr/head
///                              20260102-030405-9f2c,3,1767322999.25,0.5,0.1
///   logs/mnist/config.csv      name,value: the configuration of the latest run
///   logs/mnist/tables/RUN/NAME/STEP-N.csv   the tables of log_table; N counts the run's tables
///
/// The format is that of RFC 4180: fields are quoted where needed, all rows have the same number of
/// fields, lines end with CR and LF. `time` is in seconds since 1970. Missing values and None are
/// empty; numbers that are not finite are nan, inf and -inf; the entries of dictionaries are
/// columns with a slash; tensors and lists are JSON. Values named run, step or time get an
/// underscore in front. A new name becomes the last column: the file is copied with longer rows,
/// and the copy replaces it atomically. This happens once for all new names between two flushes,
/// and for at most 2000 columns; jsonl suits programs that keep logging new names. (Rows of one
/// name and one value each would need no copies, but a pivot before they can be read.) A later run
/// of the project appends to the same file; `run` tells the runs apart. Runs at the same time need
/// different projects, or a `dir` each.
///
/// init_kwargs: `dir`, a folder instead of <logging_dir>/<project>, DIR/rank_N for ranks other
///          than 0; `name`, a text for `run` instead of the time and a random number.
/// Fails:   while the disk is full, up to 64 MiB of rows wait; empty lines may be in their place
///          until they are written. After kill -9 the file has all rows up to the last flush, and
///          perhaps a part of a row, which the next run drops. If the file is not such a table, or
///          if its rows or quotes are broken, each call fails and the file stays as it is. Lines
///          that end with LF alone are accepted.
/// Threads: as any tracker's.
#pragma once

#include <memory>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

std::unique_ptr<GeneralTracker> make_csv_tracker(const TrackerSetup& setup);

}  // namespace accelerate::trackers
