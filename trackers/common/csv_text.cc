#include "trackers/common/csv_text.h"

namespace accelerate::trackers {

std::string csv_row(const std::vector<std::string>& fields, char separator, std::string_view end) {
  const std::string special{'"', '\n', '\r', separator};
  std::string row;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) row += separator;
    // Without quotes, a record of one empty field would be an empty line.
    const bool empty_line = fields.size() == 1 && fields[0].empty();
    if (fields[i].find_first_of(special) == std::string::npos && !empty_line) {
      row += fields[i];
      continue;
    }
    row += '"';
    for (const char c : fields[i]) {
      if (c == '"') row += '"';
      row += c;
    }
    row += '"';
  }
  row += end;
  return row;
}

size_t csv_row_size(std::string_view text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '\n' && !quoted) return i + 1;
  }
  return 0;
}

std::string_view without_csv_end(std::string_view row) {
  if (row.ends_with('\n')) row.remove_suffix(1);
  if (row.ends_with('\r')) row.remove_suffix(1);
  return row;
}

std::vector<std::string> csv_fields(std::string_view row, char separator) {
  row = without_csv_end(row);
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < row.size(); ++i) {
    const char c = row[i];
    if (quoted && c == '"' && i + 1 < row.size() && row[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == separator && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

bool has_whole_quotes(std::string_view row, char separator) {
  row = without_csv_end(row);
  bool quoted = false;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != '"') continue;
    if (!quoted) {
      if (i > 0 && row[i - 1] != separator) return false;
      quoted = true;
    } else if (i + 1 < row.size() && row[i + 1] == '"') {
      ++i;
    } else {
      if (i + 1 < row.size() && row[i + 1] != separator) return false;
      quoted = false;
    }
  }
  return !quoted;
}

}  // namespace accelerate::trackers
