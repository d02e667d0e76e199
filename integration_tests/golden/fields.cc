#include "integration_tests/golden/fields.h"

#include <algorithm>
#include <cstring>

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = 10'000'000;
constexpr int64_t kMaxRanks = 256;

[[noreturn]] void fail(const std::string& place, const char* expected, const json& value) {
  throw CaseError(place + ": expected " + expected + ", the case has " + value.dump());
}

int64_t to_int_between(const json& value, const char* name, int64_t low, int64_t high) {
  const int64_t number = to_int(value, name);
  if (number < low || number > high) {
    throw CaseError(std::string(name) + ": " + std::to_string(number) + " is not between " +
                    std::to_string(low) + " and " + std::to_string(high));
  }
  return number;
}

uint64_t to_seed(const json& value, const char* name) {
  if (!value.is_number_unsigned()) fail(name, "a seed", value);
  return value.get<uint64_t>();
}

}  // namespace

void expect_fields(const json& in, std::initializer_list<const char*> names) {
  if (!in.is_object()) fail("in", "an object", in);
  for (const auto& [key, value] : in.items()) {
    const bool known = std::any_of(names.begin(), names.end(),
                                   [&key = key](const char* name) { return key == name; });
    if (!known) throw CaseError("the case has a field \"" + key + "\", which is unknown here");
  }
}

const json& field(const json& in, const char* name) {
  auto found = in.find(name);
  if (found == in.end()) throw CaseError("the case has no field \"" + std::string(name) + "\"");
  return *found;
}

Environment environment_of(const json& in) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  if (!in.contains("env")) return environment;
  for (const auto& [name, value] : field(in, "env").items()) {
    if (!value.is_string()) throw CaseError("env: expected texts");
    environment.set(name, value.get<std::string>());
  }
  return environment;
}

int64_t to_int(const json& value, const std::string& place) {
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (!value.is_number_integer() || too_large) fail(place, "an integer", value);
  return value.get<int64_t>();
}

int64_t int_field(const json& in, const char* name) { return to_int(field(in, name), name); }

double double_field(const json& in, const char* name) {
  const json& value = field(in, name);
  if (!value.is_number()) fail(name, "a number", value);
  return value.get<double>();
}

bool bool_field(const json& in, const char* name) {
  const json& value = field(in, name);
  if (!value.is_boolean()) fail(name, "true or false", value);
  return value.get<bool>();
}

bool bool_field_or(const json& in, const char* name, bool otherwise) {
  return in.contains(name) ? bool_field(in, name) : otherwise;
}

std::string string_field(const json& in, const char* name) {
  const json& value = field(in, name);
  if (!value.is_string()) fail(name, "a string", value);
  return value.get<std::string>();
}

std::optional<int64_t> optional_int_field(const json& in, const char* name) {
  if (field(in, name).is_null()) return std::nullopt;
  return int_field(in, name);
}

std::optional<bool> optional_bool_field(const json& in, const char* name) {
  if (field(in, name).is_null()) return std::nullopt;
  return bool_field(in, name);
}

std::vector<int64_t> ints_field(const json& in, const char* name) {
  const json& value = field(in, name);
  if (!value.is_array()) fail(name, "a list of integers", value);
  std::vector<int64_t> numbers;
  for (const json& number : value) numbers.push_back(to_int(number, name));
  return numbers;
}

int64_t count_field(const json& in, const char* name) {
  return to_int_between(field(in, name), name, 0, kMaxCount);
}

int ranks_field(const json& in, const char* name) {
  return static_cast<int>(to_int_between(field(in, name), name, 1, kMaxRanks));
}

uint64_t seed_field(const json& in, const char* name) { return to_seed(field(in, name), name); }

std::optional<uint64_t> optional_seed_field(const json& in, const char* name) {
  if (field(in, name).is_null()) return std::nullopt;
  return seed_field(in, name);
}

std::vector<std::pair<std::string, json>> entries_in_order(const json& object) {
  std::vector<std::pair<std::string, json>> entries;
  if (object.contains(kOrder)) {
    for (const json& key : object[kOrder]) {
      const auto name = key.get<std::string>();
      entries.emplace_back(name, object.at(name));
    }
  } else {
    for (const auto& [key, value] : object.items()) entries.emplace_back(key, value);
  }
  return entries;
}

json to_list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().cpu().flatten();
  json list = json::array();
  if (flat.is_floating_point()) {
    const at::Tensor numbers = flat.to(at::kDouble).contiguous();
    const auto* data = numbers.const_data_ptr<double>();
    for (int64_t i = 0; i < numbers.numel(); ++i) list.push_back(data[i]);
  } else {
    const at::Tensor numbers = flat.to(at::kLong).contiguous();
    const auto* data = numbers.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < numbers.numel(); ++i) list.push_back(data[i]);
  }
  return list;
}

}  // namespace accelerate::golden
