#include "trackers/common/formats.h"

#include <png.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <variant>

#include "absl/functional/overload.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"

namespace accelerate::trackers {
namespace {

using nlohmann::ordered_json;

TrackerValue element(const TensorValue& tensor, double value) {
  if (tensor.dtype == "bool") return value != 0;
  constexpr double kEndOfInts = 9223372036854775808.0;
  const bool fits = value >= -kEndOfInts && value < kEndOfInts;  // a uint64 may be larger
  if (fits && tensor.dtype.find("int") != std::string::npos) return static_cast<int64_t>(value);
  return value;
}

// The elements below the first `depth` indices, beginning with element `*next`.
TrackerValue elements(const TensorValue& tensor, size_t depth, size_t* next) {
  if (depth == tensor.sizes.size()) return element(tensor, tensor.values[(*next)++]);
  TrackerList list;
  for (int64_t i = 0; i < tensor.sizes[depth]; ++i) {
    list.push_back(elements(tensor, depth + 1, next));
  }
  return list;
}

// A tensor whose sizes do not fit its elements becomes a flat list.
TrackerValue elements(const TensorValue& tensor) {
  const int64_t count =
      std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), int64_t{1}, std::multiplies<>());
  size_t next = 0;
  if (count == static_cast<int64_t>(tensor.values.size())) return elements(tensor, 0, &next);
  TrackerList list;
  for (const double value : tensor.values) list.push_back(element(tensor, value));
  return list;
}

using Number = ordered_json (*)(double);

ordered_json convert(const TrackerValue& value, Number number);

ordered_json convert(const TrackerDict& dict, Number number) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : dict) object[name] = convert(value, number);
  return object;
}

ordered_json convert(const TrackerValue& value, Number number) {
  return std::visit(
      absl::Overload([](std::monostate) -> ordered_json { return nullptr; },
                     [&](double real) { return number(real); },
                     [&](const TensorValue& tensor) { return convert(elements(tensor), number); },
                     [&](const TrackerList& list) {
                       ordered_json array = ordered_json::array();
                       for (const TrackerValue& entry : list)
                         array.push_back(convert(entry, number));
                       return array;
                     },
                     [&](const TrackerDict& dict) { return convert(dict, number); },
                     [](const auto& simple) -> ordered_json { return simple; }),
      value.variant());
}

constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                    PNG_FORMAT_RGBA};

// libpng's own limit is far beyond what fits into memory.
constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max() / 8;

void check(const TrackerImage& image) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(absl::StrCat("an image of ", image.height, " x ", image.width,
                                             " pixels with ", image.channels, " channels ", why));
  };
  if (image.channels < 1 || image.channels > 4)
    refuse("cannot be a PNG, which has 1 to 4 channels");
  if (image.height < 1 || image.width < 1) refuse("has no pixels");
  if (image.height > kMaxSide || image.width > kMaxSide) refuse("is too large");
  const int64_t row = image.width * image.channels;
  const auto size = static_cast<int64_t>(image.pixels.size());
  if (size % row != 0 || size / row != image.height) {
    refuse(absl::StrCat("cannot have ", size, " bytes"));
  }
}

}  // namespace

TrackerValue listify(const TrackerValue& value) {
  if (const auto* tensor = value.get_if<TensorValue>()) return elements(*tensor);
  if (const auto* dict = value.get_if<TrackerDict>()) {
    TrackerDict result;
    for (const auto& [name, entry] : *dict) result.emplace_back(name, listify(entry));
    return result;
  }
  if (const auto* list = value.get_if<TrackerList>()) {
    TrackerList result;
    for (const TrackerValue& entry : *list) result.push_back(listify(entry));
    return result;
  }
  return value;
}

ordered_json json_number(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return number;
}

ordered_json json_value(const TrackerDict& dict) { return convert(dict, json_number); }

ordered_json json_value(const TrackerValue& value) { return convert(value, json_number); }

std::string valid_utf8(const std::string& text) {
  return ordered_json::parse(json_text(text)).get<std::string>();
}

std::string yaml_text(const TrackerDict& values) {
  return accelerate::yaml_text(convert(values, [](double real) { return ordered_json(real); }));
}

std::string encode_png(const TrackerImage& image) {
  check(image);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = kFormats[image.channels - 1];
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&png, bytes.data(), &size, /*convert_to_8_bit=*/0,
                                image.pixels.data(), /*row_stride=*/0, /*colormap=*/nullptr) == 0) {
    const std::string reason = png.message;
    png_image_free(&png);
    throw std::runtime_error(absl::StrCat("cannot make a PNG of ", image.height, " x ", image.width,
                                          " pixels: ", reason));
  }
  bytes.resize(size);
  bytes.shrink_to_fit();
  return bytes;
}

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

std::vector<std::string> csv_fields(std::string_view row, char separator, bool* has_whole_quotes) {
  std::vector<std::string> fields(1);
  row = without_csv_end(row);
  bool is_sound = true;
  bool quoted = false;
  for (size_t i = 0; i < row.size(); ++i) {
    const char c = row[i];
    if (quoted && c == '"' && i + 1 < row.size() && row[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      const size_t beside = quoted ? i + 1 : i - 1;  // beyond the end at the first character, too
      is_sound = is_sound && (beside >= row.size() || row[beside] == separator);
      quoted = !quoted;
    } else if (c == separator && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (has_whole_quotes != nullptr) *has_whole_quotes = is_sound && !quoted;
  return fields;
}

}  // namespace accelerate::trackers
