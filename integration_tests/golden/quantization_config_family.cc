#include "integration_tests/golden/quantization_config.h"

#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/functional/overload.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/enums.h"
#include "accelerate/quantization/bnb_config.h"
#include "accelerate/testing/recorded_warnings.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/quantization_models.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Config = BnbQuantizationConfig;

// ---- Arguments.

bool bool_of(const json& value) {
  if (!value.is_boolean()) throw DoesNotCompile();
  return value.get<bool>();
}

// The braces of an aggregate refuse a truth value for a number.
double number_of(const json& value) {
  if (!is_number(value)) throw DoesNotCompile();
  return value.is_number() ? value.get<double>() : std::stod(value.at("$float").get<std::string>());
}

std::string text_of(const json& value) {
  if (!value.is_string()) throw DoesNotCompile();
  return value.get<std::string>();
}

BnbDtype bnb_dtype_of(const json& value) {
  static_assert(!std::is_constructible_v<BnbDtype, int> &&
                !std::is_constructible_v<BnbDtype, std::nullopt_t>);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) throw DoesNotCompile();
  return dtype_of(field(value, "$dtype"));
}

std::optional<std::vector<std::string>> names_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_array()) throw DoesNotCompile();
  std::vector<std::string> names;
  for (const json& name : value) names.push_back(text_of(name));
  return names;
}

void set_argument(Config& config, const std::string& name, const json& value) {
  if (name == "load_in_8bit") {
    config.load_in_8bit = bool_of(value);
  } else if (name == "llm_int8_threshold") {
    config.llm_int8_threshold = number_of(value);
  } else if (name == "load_in_4bit") {
    config.load_in_4bit = bool_of(value);
  } else if (name == "bnb_4bit_quant_type") {
    config.bnb_4bit_quant_type = text_of(value);
  } else if (name == "bnb_4bit_use_double_quant") {
    config.bnb_4bit_use_double_quant = bool_of(value);
  } else if (name == "bnb_4bit_compute_dtype") {
    config.bnb_4bit_compute_dtype = bnb_dtype_of(value);
  } else if (name == "torch_dtype") {
    config.torch_dtype.reset();
    if (!value.is_null()) config.torch_dtype = bnb_dtype_of(value);
  } else if (name == "skip_modules") {
    config.skip_modules = names_of(value);
  } else if (name == "keep_in_fp32_modules") {
    config.keep_in_fp32_modules = names_of(value);
  } else {
    throw CaseError("kwargs: unknown " + name);
  }
}

// ---- The fields as the file writes them.

json target_json(const Config& config) {
  return std::visit(
      absl::Overload{[](c10::ScalarType dtype) { return dtype_json(dtype); },
                     [](CustomDtype dtype) -> json {
                       return {{"$enum", absl::StrCat(EnumTable<CustomDtype>::kName, ".",
                                                      absl::AsciiStrToUpper(to_string(dtype)))}};
                     }},
      config.target_dtype());
}

json fields_json(const Config& config) {
  json fields = json::object();
  visit_fields(config, [&fields]<typename Field>(const char* name, const Field& value) {
    if constexpr (std::is_same_v<Field, BnbDtype>) {
      fields[name] = dtype_json(std::get<c10::ScalarType>(value));
    } else if constexpr (std::is_same_v<Field, std::optional<BnbDtype>>) {
      fields[name] = dtype_json(std::get<c10::ScalarType>(value.value()));
    } else if constexpr (std::is_same_v<Field, std::optional<std::vector<std::string>>>) {
      fields[name] = value ? json(*value) : json();
    } else if constexpr (std::is_same_v<Field, double>) {
      fields[name] = number_json(value);
    } else {
      fields[name] = value;
    }
  });
  fields["target_dtype"] = target_json(config);
  return fields;
}

// ---- The kinds.

json run_config(const json& in) {
  expect_fields(in, {"kind", "kwargs", "note"});
  const RecordedWarnings warnings;
  json out = part([&]() -> json {
    const Config config = quantization_config_of(field(in, "kwargs"));
    return {{"fields", fields_json(config)}};
  });
  if (out.contains("refused_by_compiler")) return out;
  out["warnings"] = json::array();
  for (const std::string& text : plain_texts(warnings)) {
    out["warnings"].push_back({{"category", "UserWarning"}, {"message", text}});
  }
  return out;
}

json run_case(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "config") return run_config(in);
  if (std::optional<json> answer = run_quantization_models(in)) return *std::move(answer);
  throw CaseError("kind: unknown " + kind);
}

const FamilyRegistration kRegistration("quantization_config", &run_case, &take_quantization_facts);

}  // namespace

Config quantization_config_of(const json& kwargs) {
  Config config;
  for (const auto& [name, value] : kwargs.items()) set_argument(config, name, value);
  return resolve(config);
}

bool is_number(const json& value) {
  return value.is_number() || (value.is_object() && value.contains("$float"));
}

json number_json(double number) {
  if (std::isfinite(number)) return number;
  return {{"$float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
}

json dtype_json(c10::ScalarType dtype) { return {{"$dtype", name_of(dtype)}}; }

}  // namespace accelerate::golden
