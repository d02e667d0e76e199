#include "accelerate/checkpoint/formats/shard_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace accelerate {
namespace {

constexpr char kExtension[] = ".safetensors";

// One past the largest int64_t.
constexpr double kTooMany = 9223372036854775808.0;

absl::StatusOr<int64_t> unit_bytes(absl::string_view size, const std::string& unit) {
  if (unit == "TB") return 1'000'000'000'000;
  if (unit == "GB") return 1'000'000'000;
  if (unit == "MB") return 1'000'000;
  if (unit == "KB") return 1'000;
  return absl::InvalidArgumentError(absl::StrCat(
      "Unit '", unit, "' not supported. Supported units are TB, GB, MB, KB. Got '", size, "'."));
}

// A number as Python's float() reads it: between digits one underscore may stand.
bool parse_number(absl::string_view text, double& value) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits.push_back(text[i]);
      continue;
    }
    const bool is_between = i > 0 && i + 1 < text.size() && absl::ascii_isdigit(text[i - 1]) &&
                            absl::ascii_isdigit(text[i + 1]);
    if (!is_between) return false;
  }
  // Python reads no hexadecimal ones.
  if (digits.find_first_of("xX") != std::string::npos) return false;
  return absl::SimpleAtod(digits, &value);
}

bool takes_digits(absl::string_view& text, size_t count) {
  if (text.size() < count) return false;
  if (!std::all_of(text.begin(), text.begin() + count, absl::ascii_isdigit)) return false;
  text.remove_prefix(count);
  return true;
}

}  // namespace

absl::StatusOr<int64_t> parse_shard_size(absl::string_view text) {
  const absl::string_view size = absl::StripAsciiWhitespace(text);
  const size_t unit_at = size.size() < 2 ? 0 : size.size() - 2;
  const std::string unit = absl::AsciiStrToUpper(size.substr(unit_at));
  const absl::StatusOr<int64_t> multiplier = unit_bytes(size, unit);
  if (!multiplier.ok()) return multiplier.status();
  const absl::string_view number = absl::StripAsciiWhitespace(size.substr(0, unit_at));
  double value = 0;
  if (!parse_number(number, value)) {
    return absl::InvalidArgumentError(absl::StrCat("Could not parse the size value from '", size,
                                                   "': could not convert string to float: '",
                                                   number, "'"));
  }
  value *= static_cast<double>(*multiplier);
  if (std::isnan(value)) return absl::InvalidArgumentError("cannot convert float NaN to integer");
  if (std::isinf(value)) {
    return absl::InvalidArgumentError("cannot convert float infinity to integer");
  }
  if (std::abs(value) >= kTooMany) {
    return absl::InvalidArgumentError(
        absl::StrCat("The size '", size, "' is not a number of bytes below 2^63."));
  }
  return static_cast<int64_t>(value);
}

ShardPlan plan_shards(const std::vector<int64_t>& tensor_bytes, int64_t max_shard_bytes,
                      const std::string& prefix) {
  ShardPlan plan;
  ShardPlan::Shard open;
  int64_t open_bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    const int64_t bytes = tensor_bytes[i];
    plan.total_bytes += bytes;
    if (bytes > max_shard_bytes) {
      plan.shards.push_back({.tensors = {i}});
      continue;
    }
    if (open_bytes > max_shard_bytes - bytes) {
      plan.shards.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.tensors.push_back(i);
    open_bytes += bytes;
  }
  if (!open.tensors.empty() || plan.shards.empty()) plan.shards.push_back(std::move(open));
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = plan.is_sharded() ? shard_file_name(prefix, i + 1, plan.shards.size())
                                            : single_file_name(prefix);
  }
  return plan;
}

std::vector<std::string> ShardPlan::files() const {
  size_t count = 0;
  for (const Shard& shard : shards) count += shard.tensors.size();
  std::vector<std::string> files(count);
  for (const Shard& shard : shards) {
    for (size_t tensor : shard.tensors) files[tensor] = shard.file;
  }
  return files;
}

std::string single_file_name(const std::string& prefix) { return prefix + kExtension; }

std::string index_file_name(const std::string& prefix) {
  return absl::StrCat(prefix, kExtension, ".index.json");
}

std::string shard_file_name(const std::string& prefix, size_t number, size_t count) {
  return absl::StrFormat("%s-%05d-of-%05d%s", prefix, number, count, kExtension);
}

bool is_shard_file_name(const std::string& prefix, const std::string& file) {
  absl::string_view rest = file;
  return absl::ConsumePrefix(&rest, prefix) && absl::ConsumePrefix(&rest, "-") &&
         takes_digits(rest, 5) && absl::ConsumePrefix(&rest, "-of-") && takes_digits(rest, 5) &&
         rest == kExtension;
}

}  // namespace accelerate
