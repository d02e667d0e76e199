#include "accelerate/files/formats/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "accelerate/base/dtype_names.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignment = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int kMaxDepth = 100;

// These dtypes appear in newer versions of the format, and in files of other writers: other tensors
// of such a file are read. Some elements are not whole bytes.
struct NewerDtype {
  absl::string_view name;
  int64_t bits;
};
constexpr NewerDtype kNewerDtypes[] = {
    {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E8M0", 8}, {"C128", 128}};

// 0 for what is not there.
int64_t bits_of(const std::string& dtype) {
  const auto* const newer = std::ranges::find(kNewerDtypes, dtype, &NewerDtype::name);
  return newer == std::end(kNewerDtypes) ? 8 * safetensors_dtype_size(dtype) : newer->bits;
}

// An excerpt of a file's text for messages, in one line.
std::string in_quotes(absl::string_view text) {
  constexpr size_t kShown = 200;
  return absl::StrCat("'", absl::Utf8SafeCEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "...'" : "'");
}

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kShown = 16;
  const auto shown = absl::MakeConstSpan(shape).subspan(0, kShown);
  return absl::StrCat("[", absl::StrJoin(shown, ", "), shape.size() > kShown ? ", ...]" : "]");
}

// Bytes of a tensor, or -1 for more than there can be, and for parts of bytes.
int64_t byte_size(const SafetensorsEntry& entry) {
  const int64_t bits = bits_of(entry.dtype);
  int64_t strides = bits % 8 == 0 ? bits / 8 : bits;
  bool empty = false;
  for (const int64_t size : entry.shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(strides, size, &strides)) {
      return -1;
    }
  }
  if (empty || bits % 8 == 0) return empty ? 0 : strides;
  return strides % 8 == 0 ? strides / 8 : -1;
}

// Reads the header's JSON as a stream, so that memory is only used for valid entries. It is
// an object whose values are objects: the metadata's values are strings, a tensor's are `dtype`,
// `shape`, `data_offsets` and whatever other writers add, which is passed over.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(SafetensorsHeader* header) : header_(header) {}

  const absl::Status& status() const { return status_; }

  bool null() override {
    // The same as no metadata at all.
    if (depth_ == 1 && name_ == kMetadata) return true;
    return other_value("null");
  }
  bool boolean(bool) override { return other_value("a boolean"); }
  bool number_integer(number_integer_t) override { return other_value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return other_value("a fraction"); }
  bool binary(binary_t&) override { return other_value("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3 || ignored()) return other_value("a number");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail(absl::StrCat(where(), ": ", value, " is too large"));
    }
    const auto number = static_cast<int64_t>(value);
    if (field_ == kShape) {
      entry_.shape.push_back(number);
      return true;
    }
    if (++offsets_ > 2) return fail(absl::StrCat(where(), ": more than two numbers"));
    (offsets_ == 1 ? entry_.begin : entry_.end) = number;
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && name_ == kMetadata) {
      header_->metadata->emplace(field_, std::move(value));
      return true;
    }
    if (depth_ != 2 || field_ != kDtype) return other_value("a string");
    if (bits_of(value) == 0) {
      return fail(absl::StrCat(where(), ": ", in_quotes(value), " is not a dtype"));
    }
    entry_.dtype = std::move(value);
    return true;
  }

  bool key(string_t& key) override {
    if (depth_ > 2) return true;
    std::set<std::string>& seen = depth_ == 1 ? names_ : fields_;
    if (!seen.insert(key).second) {
      return fail(absl::StrCat(depth_ == 1 ? "" : absl::StrCat(where(), ": "), in_quotes(key),
                               " comes twice"));
    }
    (depth_ == 1 ? name_ : field_) = std::move(key);
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ > 1 && !ignored()) return misplaced("an object");
    if (depth_ == 1) {
      fields_.clear();
      field_.clear();
      offsets_ = 0;
      entry_ = SafetensorsEntry{.name = name_};
      if (name_ == kMetadata) header_->metadata.emplace();
    }
    return enter();
  }
  bool end_object() override {
    if (--depth_ != 1 || name_ == kMetadata) return true;
    for (const char* field : {kDtype, kShape, kOffsets}) {
      if (!fields_.contains(field)) return fail(absl::StrCat(in_quotes(name_), ": no ", field));
    }
    header_->tensors.push_back(std::move(entry_));
    return true;
  }

  bool start_array(size_t) override {
    const bool expected =
        depth_ == 2 && (field_ == kShape || field_ == kOffsets) && name_ != kMetadata;
    return expected || ignored() ? enter() : misplaced("a list");
  }
  bool end_array() override {
    if (--depth_ == 2 && field_ == kOffsets && offsets_ != 2) {
      return fail(absl::StrCat(where(), ": fewer than two numbers"));
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return fail(absl::StrCat("it is not JSON at byte ", position));
  }

 private:
  static constexpr char kMetadata[] = "__metadata__";
  static constexpr char kDtype[] = "dtype";
  static constexpr char kShape[] = "shape";
  static constexpr char kOffsets[] = "data_offsets";

  // Whether this is inside a field of a tensor that we do not know.
  bool ignored() const {
    return depth_ >= 2 && name_ != kMetadata && field_ != kDtype && field_ != kShape &&
           field_ != kOffsets;
  }

  bool enter() {
    if (++depth_ > kMaxDepth) return fail("it is nested too deeply");
    return true;
  }

  bool other_value(absl::string_view what) { return ignored() || misplaced(what); }
  bool misplaced(absl::string_view what) {
    return fail(absl::StrCat(where(), ": ", what, " is out of place"));
  }

  std::string where() const {
    if (depth_ == 0) return "the top";
    return depth_ == 1 ? in_quotes(name_) : absl::StrCat(in_quotes(name_), ", ", in_quotes(field_));
  }

  bool fail(const std::string& what) { return fail(absl::DataLossError(what)); }
  bool fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }

  SafetensorsHeader* const header_;
  absl::Status status_;
  int depth_ = 0;      // open objects and lists
  std::string name_;   // of the tensor, or kMetadata
  std::string field_;  // of the tensor, or of the metadata
  std::set<std::string> names_;
  std::set<std::string> fields_;
  SafetensorsEntry entry_;
  int offsets_ = 0;
};

// Sorts the tensors, and checks that they fill the data.
absl::Status check_positions(std::vector<SafetensorsEntry>& tensors, int64_t data_size) {
  std::ranges::sort(tensors, {}, [](const SafetensorsEntry& entry) {
    return std::tie(entry.begin, entry.end, entry.name);
  });
  int64_t position = 0;
  for (const SafetensorsEntry& entry : tensors) {
    const int64_t bytes = byte_size(entry);
    if (bytes < 0) {
      return absl::DataLossError(absl::StrCat(in_quotes(entry.name), ": the shape ",
                                              shape_text(entry.shape), " of ", entry.dtype,
                                              " overflows, or is not a whole number of bytes"));
    }
    const std::string range = absl::StrCat(in_quotes(entry.name), ", at bytes ", entry.begin,
                                           " to ", entry.end, " of the data, ");
    if (entry.begin != position) {
      return absl::DataLossError(absl::StrCat(
          range,
          entry.begin > position ? "leaves a hole after byte " : "overlaps what is before byte ",
          position));
    }
    if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
      return absl::DataLossError(absl::StrCat(range, "should have ", bytes, " bytes: ", entry.dtype,
                                              " ", shape_text(entry.shape)));
    }
    if (entry.end > data_size) {
      return absl::DataLossError(absl::StrCat(range, "is cut off: there are ", data_size));
    }
    position = entry.end;
  }
  if (position == data_size) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("there are ", data_size - position, " bytes after the last tensor"));
}

// The header's length, checked. `start`: the file's first bytes, at least 8 if it has as many.
absl::StatusOr<int64_t> header_length(absl::string_view start, int64_t file_size) {
  if (file_size < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("it has ", file_size, " bytes only"));
  }
  uint64_t length = 0;
  for (int64_t i = kLengthBytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(start[i]);
  }
  if (length > kMaxHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat("its header is too long: ", length, " bytes, at most ", kMaxHeaderBytes));
  }
  if (static_cast<int64_t>(length) > file_size - kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("it is cut off: a header of ", length, " bytes in a file of ", file_size));
  }
  return static_cast<int64_t>(length);
}

// Throws the reason why tensors cannot be written.
template <typename... Parts>
[[noreturn]] void refuse(const Parts&... why) {
  throw std::invalid_argument(absl::StrCat(why...));
}

// As JSON. A text that is not UTF-8 is refused rather than mended, because it would be read back as
// another name.
std::string exact_json_text(const std::string& text) {
  try {
    return internal::exact_json_text(Json(text));
  } catch (const Json::exception&) {
    refuse("not UTF-8: ", in_quotes(text));
  }
}

void place_tensors(std::vector<SafetensorsEntry>& tensors) {
  for (const SafetensorsEntry& entry : tensors) {
    if (safetensors_dtype_size(entry.dtype) > 0) continue;
    refuse(in_quotes(entry.name), ": ", in_quotes(entry.dtype), " is not a dtype");
  }
  std::ranges::sort(tensors, {}, [](const SafetensorsEntry& entry) {
    const DtypeName* dtype = find_dtype(&DtypeName::safetensors, entry.dtype);
    return std::pair<ptrdiff_t, const std::string&>(std::begin(kDtypeNames) - dtype, entry.name);
  });
  int64_t position = 0;
  for (SafetensorsEntry& entry : tensors) {
    const int64_t bytes = byte_size(entry);
    entry.begin = position;
    const bool negative = std::ranges::any_of(entry.shape, [](int64_t size) { return size < 0; });
    if (negative || bytes < 0 || __builtin_add_overflow(position, bytes, &position)) {
      refuse(in_quotes(entry.name), ": no shape: ", shape_text(entry.shape));
    }
    entry.end = position;
  }
}

std::string text_of(const SafetensorsHeader& header) {
  std::vector<std::string> members;
  if (header.metadata) {
    const auto append = [](std::string* out, const auto& member) {
      absl::StrAppend(out, exact_json_text(member.first), ":", exact_json_text(member.second));
    };
    members.push_back(
        absl::StrCat("\"__metadata__\":{", absl::StrJoin(*header.metadata, ",", append), "}"));
  }
  std::set<std::string> names;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.name == "__metadata__" || !names.insert(entry.name).second) {
      refuse(in_quotes(entry.name), " comes twice");
    }
    members.push_back(absl::StrCat(exact_json_text(entry.name), ":{\"dtype\":\"", entry.dtype,
                                   "\",\"shape\":[", absl::StrJoin(entry.shape, ","),
                                   "],\"data_offsets\":[", entry.begin, ",", entry.end, "]}"));
  }
  std::string json = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  return json;
}

}  // namespace

int64_t safetensors_dtype_size(const std::string& dtype) {
  const DtypeName* known = find_dtype(&DtypeName::safetensors, dtype);
  return known == nullptr ? 0 : known->bytes;
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(absl::string_view file_start,
                                                           int64_t file_size) {
  ACCELERATE_ASSIGN_OR_RETURN(const int64_t length, header_length(file_start, file_size));
  const absl::string_view json = file_start.substr(kLengthBytes, length);
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + length;
  HeaderReader reader(&header);
  // The parser would take these bytes for the end of its input, and for nothing.
  if (json.find('\0') != json.npos || absl::StartsWith(json, "\xEF")) {
    return absl::DataLossError("its header is not JSON");
  }
  if (!Json::sax_parse(json.data(), json.data() + json.size(), &reader)) {
    return absl::Status(reader.status().code(),
                        absl::StrCat("its header is wrong: ", reader.status().message()));
  }
  ACCELERATE_RETURN_IF_ERROR(check_positions(header.tensors, file_size - header.data_offset));
  return header;
}

absl::StatusOr<std::string> read_safetensors_start(const ReadableFile& file,
                                                   const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string start, read_start(file, kLengthBytes));
  ACCELERATE_ASSIGN_OR_RETURN(const int64_t length,
                              in_file(path, header_length(start, file.size())));
  return read_start(file, kLengthBytes + length);
}

absl::StatusOr<SafetensorsHeader> read_safetensors_header(const ReadableFile& file,
                                                          const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string start, read_safetensors_start(file, path));
  return in_file(path, parse_safetensors_header(start, file.size()));
}

absl::StatusOr<std::string> lay_out_safetensors(SafetensorsHeader& header) {
  std::string json;
  try {
    place_tensors(header.tensors);
    json = text_of(header);
  } catch (const std::invalid_argument& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (json.size() > kMaxHeaderBytes) {
    return invalid("a header of ", json.size(), " bytes is too long, at most ", kMaxHeaderBytes);
  }
  header.data_offset = kLengthBytes + static_cast<int64_t>(json.size());
  std::string bytes;
  for (int64_t i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i) & 0xFF);
  }
  return bytes + json;
}

static constexpr char kStateValues[] = "values";

SafetensorsMetadata internal::state_metadata(const std::string& values) {
  SafetensorsMetadata metadata = {{"format", "pt"}};
  if (!values.empty()) metadata[kStateValues] = values;
  return metadata;
}

const std::string* internal::find_state_values(const SafetensorsHeader& header) {
  if (!header.metadata) return nullptr;
  const auto values = header.metadata->find(kStateValues);
  return values == header.metadata->end() ? nullptr : &values->second;
}

}  // namespace accelerate
