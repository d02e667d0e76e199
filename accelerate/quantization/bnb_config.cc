#include "accelerate/quantization/bnb_config.h"

#include <concepts>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/functional/overload.h"
#include "accelerate/values/dtypes.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr double kDefaultThreshold = 6.0;

// "float16" of at::kHalf.
std::string dtype_text(const BnbDtype& dtype) {
  return std::visit(absl::Overload{[](const std::string& text) { return text; },
                                   [](c10::ScalarType type) { return dtype_name(type); }},
                    dtype);
}

constexpr std::pair<const char*, c10::ScalarType> kShortNames[] = {
    {"fp32", c10::kFloat}, {"fp16", c10::kHalf}, {"bf16", c10::kBFloat16}};

[[noreturn]] void refuse_dtype(const char* name, const BnbDtype& dtype) {
  TORCH_CHECK_VALUE(false, name, " must be in ['fp32','fp16','bf16'] but found ",
                    dtype_text(dtype));
}

c10::ScalarType resolved_dtype(const char* name, const BnbDtype& dtype) {
  if (const auto* given = std::get_if<c10::ScalarType>(&dtype)) return *given;
  for (const auto& [text, type] : kShortNames) {
    if (std::get<std::string>(dtype) == text) return type;
  }
  refuse_dtype(name, dtype);
}

void check(const BnbQuantizationConfig& config) {
  TORCH_CHECK_VALUE(!config.load_in_4bit || !config.load_in_8bit,
                    "load_in_4bit and load_in_8bit can't be both True");
  TORCH_CHECK_VALUE(config.load_in_4bit || config.load_in_8bit,
                    "load_in_4bit and load_in_8bit can't be both False");
  TORCH_CHECK_VALUE(config.llm_int8_threshold >= 0,
                    "llm_int8_threshold must be at least 0 but found ", config.llm_int8_threshold);
  TORCH_CHECK_VALUE(contains<FourBitType>(config.bnb_4bit_quant_type),
                    "bnb_4bit_quant_type must be in ['fp4','nf4'] but found ",
                    config.bnb_4bit_quant_type);
}

}  // namespace

BnbQuantizationConfig resolve(BnbQuantizationConfig config) {
  check(config);
  const c10::ScalarType compute =
      resolved_dtype("bnb_4bit_compute_dtype", config.bnb_4bit_compute_dtype);
  const bool is_known = compute == c10::ScalarType::Float || compute == c10::ScalarType::Half ||
                        compute == c10::ScalarType::BFloat16;
  if (!is_known) refuse_dtype("bnb_4bit_compute_dtype", compute);
  config.bnb_4bit_compute_dtype = compute;
  if (config.load_in_4bit && config.llm_int8_threshold != kDefaultThreshold) {
    TORCH_WARN("llm_int8_threshold can only be used for model loaded in 8bit");
  }
  if (config.torch_dtype) {
    const c10::ScalarType dtype = resolved_dtype("torch_dtype", *config.torch_dtype);
    TORCH_CHECK_VALUE(c10::isFloatingType(dtype),
                      "torch_dtype must be a floating-point dtype but found ", dtype_text(dtype));
    config.torch_dtype = dtype;
  } else {
    config.torch_dtype = config.load_in_8bit ? c10::ScalarType::Half : compute;
  }
  return config;
}

FourBitType BnbQuantizationConfig::quant_type() const {
  return from_string<FourBitType>(bnb_4bit_quant_type);
}

c10::ScalarType BnbQuantizationConfig::compute_dtype() const {
  return std::get<c10::ScalarType>(bnb_4bit_compute_dtype);
}

c10::ScalarType BnbQuantizationConfig::remaining_dtype() const {
  return std::get<c10::ScalarType>(torch_dtype.value());
}

std::variant<c10::ScalarType, CustomDtype> BnbQuantizationConfig::target_dtype() const {
  if (load_in_8bit) return c10::ScalarType::Char;
  return CustomDtype::kInt4;
}

nlohmann::ordered_json to_dict(const BnbQuantizationConfig& config) {
  auto dict = nlohmann::ordered_json::object();
  visit_fields(config, [&dict]<typename Field>(const char* name, const Field& value) {
    if constexpr (std::same_as<Field, BnbDtype>) {
      dict[name] = dtype_text(value);
    } else if constexpr (std::same_as<Field, std::optional<BnbDtype>>) {
      dict[name] = value ? nlohmann::ordered_json(dtype_text(*value)) : nlohmann::ordered_json();
    } else {
      dict[name] = internal::to_json_value(value);
    }
  });
  return dict;
}

}  // namespace accelerate
