/// Reads the fields of a case, strictly: what a case says and we do not understand fails the case.
///
/// Errors: CaseError naming the field, what is expected there and what is there.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/platform/environment.h"

namespace accelerate::golden {

/// The case cannot be run: it is not one that its family describes.
class CaseError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Every field of `in` is one of these.
void expect_fields(const nlohmann::json& in, std::initializer_list<const char*> names);

const nlohmann::json& field(const nlohmann::json& in, const char* name);
int64_t int_field(const nlohmann::json& in, const char* name);
double double_field(const nlohmann::json& in, const char* name);
bool bool_field(const nlohmann::json& in, const char* name);
/// `otherwise` where the case has no such field.
bool bool_field_or(const nlohmann::json& in, const char* name, bool otherwise);
std::string string_field(const nlohmann::json& in, const char* name);
/// Nothing for null.
std::optional<int64_t> optional_int_field(const nlohmann::json& in, const char* name);
std::optional<bool> optional_bool_field(const nlohmann::json& in, const char* name);
std::vector<int64_t> ints_field(const nlohmann::json& in, const char* name);

/// An integer that is a reasonable number of samples, draws or ranks: a file must not be able to
/// exhaust the machine.
int64_t count_field(const nlohmann::json& in, const char* name);
int ranks_field(const nlohmann::json& in, const char* name);
/// A seed, from 0.
uint64_t seed_field(const nlohmann::json& in, const char* name);
std::optional<uint64_t> optional_seed_field(const nlohmann::json& in, const char* name);

/// The key under which an object keeps the order of its entries, where that is not the keys' own.
inline constexpr char kOrder[] = "$order";
/// The entries of an object as they stood in the file, if its family asked for that.
std::vector<std::pair<std::string, nlohmann::json>> entries_in_order(const nlohmann::json& object);

/// An environment in which nothing is set but the variables in `in`'s object "env", if it has one.
Environment environment_of(const nlohmann::json& in);

/// `value`, which stands at `place`, as an integer.
int64_t to_int(const nlohmann::json& value, const std::string& place);

/// A vector of integers as a list, one of floats as a list.
nlohmann::json to_list(const at::Tensor& tensor);

}  // namespace accelerate::golden
