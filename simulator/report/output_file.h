/// A file that is written as a whole or not at all, and parts of JSON text for files that are too
/// large to build as one value first.
///
/// The file is written under a temporary name in the same folder, piece by piece, and renamed at
/// the end. If it is not committed, the temporary file is removed and an older file at the path
/// stays.
/// Errors: a Status that names the path: NotFound, PermissionDenied, ResourceExhausted (disk full)
///         and so on, by errno. After an error the file cannot be used.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::simulator {

class OutputFile {
 public:
  static absl::StatusOr<OutputFile> create(const std::string& path);

  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Errors are reported by commit(), so that writers need not check every piece.
  void append(absl::string_view text);

  /// Gives the file its final path.
  absl::Status commit();

 private:
  OutputFile(std::string path, std::string partial, std::FILE* file);

  std::string path_;
  std::string partial_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;  // null once committed
  int error_ = 0;                                         // errno of the first write that failed
};

using Json = nlohmann::ordered_json;

/// As `json_text`, with `<` escaped, so that the text may be embedded in an HTML script element.
std::string html_json_text(const Json& value);

/// A list with what `row` makes of each element.
template <typename List, typename Row>
Json rows_of(const List& list, const Row& row) {
  Json rows = Json::array();
  for (const auto& each : list) rows.push_back(row(each));
  return rows;
}

/// Nanoseconds as microseconds with three decimals, without rounding: "12.345".
std::string microseconds(int64_t ns);

/// Returns the comma before every element but the first.
class Separator {
 public:
  const char* next() { return first_ ? (first_ = false, "") : ","; }

 private:
  bool first_ = true;
};

}  // namespace accelerate::simulator
