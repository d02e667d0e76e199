/// Records of text with separators, as RFC 4180 has them: fields with a separator, a quote or an
/// end of line in them are quoted, and quotes in these doubled.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::trackers {

std::string csv_row(const std::vector<std::string>& fields, char separator = ',',
                    std::string_view end = "\r\n");

/// The bytes of the first record with its end, which is "\n" with or without "\r"; 0 if it has no
/// end. Ends within quotes are none.
size_t csv_row_size(std::string_view text);

/// The record without its end, "\n" or "\r\n".
std::string_view without_csv_end(std::string_view row);

/// The fields of one record, without or with its end.
std::vector<std::string> csv_fields(std::string_view row, char separator = ',');

/// Whether quotes stand around whole fields only, and within them doubled, as `csv_row` writes
/// them.
bool has_whole_quotes(std::string_view row, char separator = ',');

}  // namespace accelerate::trackers
