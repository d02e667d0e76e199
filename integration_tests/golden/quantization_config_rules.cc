#include <algorithm>
#include <string>
#include <vector>

#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

constexpr char kFamily[] = "quantization_config";

json arguments_of(const json& in) { return in.value("kwargs", json::object()); }

bool is_dtype(const json& value) { return value.is_object() && value.contains("$dtype"); }

bool is_list_or_null(const json& value) { return value.is_array() || value.is_null(); }

bool is_of_its_type(const std::string& name, const json& value) {
  if (name == "llm_int8_threshold") return value.is_number();
  if (name == "bnb_4bit_quant_type") return value.is_string();
  if (name == "bnb_4bit_compute_dtype") return value.is_string() || is_dtype(value);
  if (name == "torch_dtype") return value.is_string() || is_dtype(value) || value.is_null();
  if (name == "skip_modules" || name == "keep_in_fp32_modules") return is_list_or_null(value);
  return value.is_boolean();
}

bool has_a_value_of_another_type(const json& in) {
  const json arguments = arguments_of(in);
  for (const auto& [name, value] : arguments.items()) {
    if (!is_of_its_type(name, value)) return true;
  }
  return false;
}

void leave_it_to_the_compiler(const json& /*in*/, json& out) {
  out = {{"refused_by_compiler", true}};
}

bool is_one_of(const json& dtype, const std::vector<std::string>& names) {
  return std::ranges::find(names, dtype.at("$dtype").get<std::string>()) != names.end();
}

bool has_a_dtype_that_cannot_be_computed_in(const json& in) {
  const json arguments = arguments_of(in);
  const json compute = arguments.value("bnb_4bit_compute_dtype", json());
  const json rest = arguments.value("torch_dtype", json());
  if (is_dtype(compute) && !is_one_of(compute, {"float32", "float16", "bfloat16"})) return true;
  return is_dtype(rest) && !is_one_of(rest, {"float32", "float16", "bfloat16", "float64"});
}

void refuse_the_dtype(const json& /*in*/, json& out) {
  if (!out.contains("fields")) return;
  out = our_error({"ValueError"},
                  {"bnb_4bit_compute_dtype must be in", "torch_dtype must be a floating-point"});
  out["warnings"] = json::array();
}

}  // namespace

std::vector<Decision> quantization_config_rules() {
  return {
      {kFamily, "values of another type",
       "HF Accelerate raises an error for most of them, and takes a truth value for a threshold; "
       "here the compiler refuses them",
       &has_a_value_of_another_type, &leave_it_to_the_compiler},
      {kFamily, "dtypes that nothing is computed in",
       "HF Accelerate takes any dtype and fails when a layer is computed; here a compute dtype is "
       "fp32, fp16 or bf16, and torch_dtype is floating point",
       &has_a_dtype_that_cannot_be_computed_in, &refuse_the_dtype},
  };
}

}  // namespace accelerate::golden
