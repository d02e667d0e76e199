/// A table for spreadsheets and pandas.read_csv: a row for each `log`, a column for each value.
///
///   Accelerator accelerator({.log_with = {"csv"}, .project_dir = "logs"});
///
///   logs/mnist/metrics.csv     run,step,time,loss,lr/head
///                              20260102-030405-9f2c,3,1767322999.25,0.5,0.1
///   logs/mnist/config.csv      name,value: the configuration of the latest run
///   logs/mnist/tables/RUN/NAME/STEP-N.csv   what log_table got; N counts those of the run
///
/// As RFC 4180 has it: fields are quoted where they must be, all rows have as many fields, lines
/// end with CR and LF. `time` is in seconds since 1970; what a call did not log is empty, as None
/// is; numbers that are not finite are nan, inf and -inf; dictionaries are columns with a slash;
/// tensors and lists are JSON. Values named run, step or time have an underscore in front.
/// A new name is a new last column: the file is copied with shorter rows made longer and replaces
/// the old one at once. That is done once for all new names between two flushes, and for 2000
/// columns at most; who logs ever new names is better served by jsonl. (Rows of a name and a value
/// each would need no copies, and a pivot before anybody could look at them.)
/// A later run of the project goes on with the same file; `run` tells them apart. Runs at the same
/// time need a `dir`, or a project, of their own.
///
/// init_kwargs: `dir`, a folder instead of <logging_dir>/<project>, DIR/rank_N for ranks other
///          than 0; `name`, a text instead of the
///          time and a random number for `run`.
/// Fails:   rows that the disk has no room for wait, 64 MiB of them at most, and are written when
///          there is room; until then empty lines may be in their place. What kill -9 leaves are
///          whole rows up to the last flush and perhaps a part of one, which the next run drops.
///          A file of the name that is no table of ours, or whose rows or quotes are broken, is an
///          error of each call and stays as it is. Lines that end with LF alone are taken.
/// Threads: as any tracker's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/tracking/tracker.h"
#include "trackers/common/append_file.h"
#include "trackers/common/file_options.h"

namespace accelerate::trackers {

class CsvTracker final : public GeneralTracker {
 public:
  explicit CsvTracker(const TrackerSetup& setup);

  void start() override;
  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values, const TrackerStep& step) override;
  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override;
  void flush() override;
  void finish() override;

 private:
  using Row = std::vector<std::pair<size_t, std::string>>;  // texts by column

  CsvTracker(const TrackerSetup& setup, FileOptions options);
  static size_t size_of(const Row& row);  // in bytes, about
  void open_earlier();
  std::string keep(std::string_view contents);
  size_t column(const std::string& name);
  void write_columns();

  const TrackerServices& services_;
  const std::string folder_;
  const std::string run_;
  int64_t tables_ = 0;  // so far
  std::vector<std::string> columns_;
  std::map<std::string, size_t, std::less<>> column_of_;
  size_t written_columns_ = 0;  // that the file's header has
  bool opened_ = false;         // an earlier file, if there was one
  bool said_full_ = false;
  std::deque<Row> rows_;  // that wait for their columns
  size_t bytes_ = 0;      // of those
  bool failed_ = false;   // the last flush did
  AppendFile file_;
};

}  // namespace accelerate::trackers
