/// Records of RFC 4180: fields that contain a separator, a quote or an end of line are quoted, and
/// quotes within them are doubled.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::trackers {

std::string csv_row(const std::vector<std::string>& fields, char separator = ',',
                    std::string_view end = "\r\n");

/// The bytes of the first record with its end, "\n" or "\r\n"; 0 if it has no end. Line ends within
/// quotes do not count.
size_t csv_row_size(std::string_view text);

/// The record without its end, "\n" or "\r\n".
std::string_view without_csv_end(std::string_view row);

/// The fields of one record, without or with its end.
std::vector<std::string> csv_fields(std::string_view row, char separator = ',');

/// Whether quotes are only around whole fields, and doubled within them, as `csv_row` writes them.
bool has_whole_quotes(std::string_view row, char separator = ',');

}  // namespace accelerate::trackers
