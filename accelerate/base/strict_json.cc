#include "accelerate/base/strict_json.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

using nlohmann::json;

// The parser would silently keep one of two equal keys.
class KeyWatch {
 public:
  bool operator()(json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == json::parse_event_t::key && problem_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) problem_ = absl::StrCat("it has \"", key, "\" twice");
    }
    return true;
  }
  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
};

bool is_deeper(const nlohmann::ordered_json& value, size_t limit) {
  if (!value.is_structured()) return false;
  if (limit == 0) return true;
  return std::any_of(value.begin(), value.end(), [limit](const nlohmann::ordered_json& item) {
    return is_deeper(item, limit - 1);
  });
}

}  // namespace

bool is_text_too_deep(absl::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\')
        ++i;
      else if (text[i] == '"')
        in_string = false;
    } else if (text[i] == '"') {
      in_string = true;
    } else if (text[i] == '{' || text[i] == '[') {
      if (++depth > kMaxJsonDepth) return true;
    } else if ((text[i] == '}' || text[i] == ']') && depth > 0) {
      --depth;
    }
  }
  return false;
}

bool is_value_too_deep(const nlohmann::ordered_json& value) {
  return is_deeper(value, kMaxJsonDepth);
}

absl::StatusOr<json> parse_strictly(absl::string_view text) {
  if (is_text_too_deep(text)) return absl::DataLossError("it is nested too deeply");
  KeyWatch watch;
  json value = json::parse(
      text.begin(), text.end(),
      [&watch](int /*depth*/, json::parse_event_t event, const json& parsed) {
        return watch(event, parsed);
      },
      /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::DataLossError("it is not JSON");
  if (!watch.problem().empty()) return absl::DataLossError(watch.problem());
  return value;
}

int64_t integer_of(const json& value) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) throw std::invalid_argument(absl::StrCat(value.dump(), " is not a 64-bit integer"));
  return value.get<int64_t>();
}

std::vector<int64_t> integers_of(const json& value) {
  if (!value.is_array()) throw std::invalid_argument("expected a list of integers");
  std::vector<int64_t> integers;
  for (const json& entry : value) integers.push_back(integer_of(entry));
  return integers;
}

bool is_plain_file_name(const std::string& file) {
  return !file.empty() && file != "." && file != ".." &&
         file.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

}  // namespace accelerate::internal
