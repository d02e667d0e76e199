#include "trackers/csv/csv_tracker.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "trackers/common/append_file.h"
#include "trackers/common/file_options.h"
#include "trackers/common/formats.h"
#include "trackers/common/init_kwargs.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

constexpr char kName[] = "csv";
constexpr size_t kMaxColumns = 2000;
constexpr size_t kNoColumn = kMaxColumns;
constexpr size_t kMuch = size_t{256} << 10;  // bytes of rows that are written without a flush
constexpr size_t kCapacity = size_t{64} << 20;

// The columns that all rows have.
enum : size_t { kRun, kStep, kTime, kFixedColumns };
constexpr const char* kFixed[] = {"run", "step", "time"};

std::string text_of(const TrackerValue& value) {
  if (value.is_none()) return "";
  if (const auto* tensor = value.get_if<TensorValue>()) {
    if (tensor->values.size() != 1) return json_text(json_value(value));
    const nlohmann::ordered_json element =
        json_value(TensorValue{.dtype = tensor->dtype, .values = tensor->values});
    return element.is_number_float() || element.is_string() ? float_text(tensor->values[0])
                                                            : json_text(element);
  }
  if (value.get_if<TrackerList>() != nullptr) return json_text(json_value(value));
  return value_text(value);
}

// Returns the text behind the last whole record.
template <typename Visit>
std::string_view for_each_record(std::string_view contents, const Visit& visit) {
  while (const size_t size = csv_row_size(contents)) {
    visit(contents.substr(0, size));
    contents.remove_prefix(size);
  }
  return contents;
}

// Whether a record without an end contains further records, because its quotes are not in pairs.
bool holds_rows(std::string_view record, size_t fields) {
  for (size_t end; (end = record.find('\n')) != record.npos;) {
    record.remove_prefix(end + 1);
    const std::string_view line = record.substr(0, record.find('\n'));
    if (!line.empty() && csv_fields(line).size() == fields) return true;
  }
  return false;
}

// Whether the line only fills the place of a record that did not fit.
bool is_filler(std::string_view record) { return record == "\n"; }

class CsvTracker final : public GeneralTracker {
 public:
  explicit CsvTracker(const TrackerSetup& setup)
      : services_(setup.services),
        out_(file_options(kName, setup)),
        file_(services_.files, join_path(out_.folder, "metrics.csv"),
              {.keep = [this](std::string_view contents) { return keep(contents); },
               .capacity = kCapacity}) {
    for (const char* const name : kFixed) column(name);
    file_.set_header(csv_row(columns_));
    written_columns_ = columns_.size();
  }

  void start() override {
    throw_if_error(make_directories_durably(services_.files, out_.folder));
    open_earlier();
  }

  void store_init_configuration(const TrackerDict& values) override {
    std::string text = csv_row({"name", "value"});
    for_each_value(values, [&](const std::string& name, const TrackerValue& value) {
      text += csv_row({name, text_of(value)});
    });
    throw_if_error(write_file(services_.files, join_path(out_.folder, "config.csv"), text));
  }

  void log(const TrackerDict& values, const TrackerStep& step) override {
    open_earlier();
    Row row{{kRun, out_.run}, {kTime, float_text(unix_seconds(step.time))}};
    if (step.step) row.emplace_back(kStep, absl::StrCat(*step.step));
    for_each_value(values, [&](const std::string& name, const TrackerValue& value) {
      const bool taken = std::find(std::begin(kFixed), std::end(kFixed), name) != std::end(kFixed);
      const size_t place = column(taken ? absl::StrCat("_", name) : name);
      if (place == kNoColumn) return;
      row.emplace_back(place, text_of(value));
    });
    const size_t bytes = size_of(row);
    if (bytes_ + bytes > kCapacity) {
      throw std::runtime_error(
          absl::StrCat(file_.path(), ": ", kCapacity,
                       " bytes already wait to be written; further records are lost"));
    }
    rows_.push_back(std::move(row));
    bytes_ += bytes;
    if (bytes_ >= kMuch && !failed_) flush();
    refuse_log_kwargs(kName, step.kwargs);
  }

  void log_table(const std::string& name, const TrackerTable& table,
                 const TrackerStep& step) override {
    std::string text = csv_row(table.columns);
    for (const TrackerList& row : table.rows) {
      std::vector<std::string> fields;
      for (const TrackerValue& value : row) fields.push_back(text_of(value));
      text += csv_row(fields);
    }
    const std::string when = step.step ? absl::StrCat(*step.step, "-") : "";
    const std::string path = absl::StrCat("tables/", safe_path(out_.run), "/", safe_path(name), "/",
                                          when, tables_++, ".csv");
    throw_if_error(write_file(services_.files, join_path(out_.folder, path), text));
    refuse_log_kwargs(kName, step.kwargs);
  }

  void flush() override {
    failed_ = true;
    open_earlier();
    write_columns();
    file_.open();
    file_.flush();  // makes room for more
    while (!rows_.empty()) {
      std::vector<std::string> fields(columns_.size());
      for (const auto& [place, text] : rows_.front()) fields[place] = text;
      // AppendFile keeps the row from here on, even if the disk fails.
      bytes_ -= size_of(rows_.front());
      rows_.pop_front();
      file_.append(csv_row(fields));
    }
    file_.flush();
    failed_ = false;
  }

  void finish() override {
    std::string failure;
    try {
      flush();
    } catch (const std::runtime_error& error) {
      failure = error.what();
    }
    try {
      file_.finish();
    } catch (const std::runtime_error&) {
      if (rows_.empty()) throw;
    }
    if (!rows_.empty()) {
      throw std::runtime_error(
          absl::StrCat(file_.path(), ": ", rows_.size(), " rows are lost: ", failure));
    }
  }

 private:
  using Row = std::vector<std::pair<size_t, std::string>>;  // texts by column

  // In bytes, about.
  static size_t size_of(const Row& row) {
    size_t bytes = sizeof(Row);
    for (const auto& [place, text] : row) bytes += sizeof(place) + text.size();
    return bytes;
  }
  void open_earlier() {
    if (opened_) return;
    if (value_or_throw(exists(services_.files, file_.path()))) file_.open();
    opened_ = true;
  }

  std::string keep(std::string_view contents) {
    std::string kept;
    bool is_sound = true;
    size_t fields = 0;
    const std::string_view torn = for_each_record(contents, [&](std::string_view record) {
      if (is_filler(record) || record.find('\0') != record.npos) return;
      bool has_whole_quotes = false;
      const size_t size = csv_fields(record, ',', &has_whole_quotes).size();
      if (fields == 0) fields = size;
      is_sound = is_sound && size == fields && has_whole_quotes;
      kept += record;
    });
    is_sound = is_sound && !(fields > 0 && holds_rows(torn, fields));
    const size_t header = csv_row_size(kept);
    if (header == 0) return kept;
    const std::vector<std::string> names = csv_fields(std::string_view(kept).substr(0, header));
    const bool is_ours = names.size() >= kFixedColumns &&
                         std::equal(std::begin(kFixed), std::end(kFixed), names.begin());
    if (!is_ours || (opened_ && names != columns_)) {
      throw std::runtime_error(absl::StrCat(
          file_.path(), " has other columns: it was written by another program, or another run"));
    }
    if (!is_sound) {
      throw std::runtime_error(
          absl::StrCat(file_.path(),
                       " has rows with other fields than its header, or quotes that are not in "
                       "pairs: mend it or move it away, nothing is written to it"));
    }
    for (const std::string& name : names) column(name);
    written_columns_ = columns_.size();
    file_.set_header(csv_row(columns_));
    return kept;
  }

  size_t column(const std::string& name) {
    const auto found = column_of_.find(name);
    if (found != column_of_.end()) return found->second;
    if (columns_.size() >= kMaxColumns) {
      if (!std::exchange(said_full_, true)) {
        services_.warn(
            absl::StrCat("tracker csv: ", file_.path(), " has ", kMaxColumns, " columns; `", name,
                         "` and other new names are left out. The jsonl tracker takes any"));
      }
      return kNoColumn;
    }
    columns_.push_back(name);
    return column_of_[name] = columns_.size() - 1;
  }

  void write_columns() {
    if (columns_.size() == written_columns_) return;
    const std::string header = csv_row(columns_);
    if (file_.is_open()) {
      const std::string more(columns_.size() - written_columns_, ',');
      file_.rewrite([&](std::string_view contents) {
        std::string wider;
        for_each_record(contents, [&](std::string_view record) {
          if (wider.empty()) {
            wider = header;
          } else if (!is_filler(record)) {
            absl::StrAppend(&wider, std::string(without_csv_end(record)), more, "\r\n");
          }
        });
        return wider;
      });
    }
    file_.set_header(header);
    written_columns_ = columns_.size();
  }

  const TrackerServices& services_;
  const FileOptions out_;
  int64_t tables_ = 0;  // the number of tables so far
  std::vector<std::string> columns_;
  std::map<std::string, size_t, std::less<>> column_of_;
  size_t written_columns_ = 0;  // the columns of the file's header
  bool opened_ = false;         // whether an earlier file was looked for
  bool said_full_ = false;
  std::deque<Row> rows_;  // waiting for the next flush
  size_t bytes_ = 0;      // of the waiting rows
  bool failed_ = false;   // whether the last flush failed
  AppendFile file_;
};

const TrackerRegistration kRegistration({.name = kName,
                                         .requires_logging_directory = true,
                                         .tracker = make_csv_tracker});

}  // namespace

std::unique_ptr<GeneralTracker> make_csv_tracker(const TrackerSetup& setup) {
  return std::make_unique<CsvTracker>(setup);
}

}  // namespace accelerate::trackers
