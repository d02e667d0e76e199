#include "integration_tests/golden/dtypes.h"

#include <utility>

#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"bool", at::kBool},
    {"uint8", at::kByte},
    {"uint16", at::kUInt16},
    {"uint32", at::kUInt32},
    {"uint64", at::kUInt64},
    {"int8", at::kChar},
    {"int16", at::kShort},
    {"int32", at::kInt},
    {"int64", at::kLong},
    {"float8_e4m3fn", at::kFloat8_e4m3fn},
    {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
    {"float8_e5m2", at::kFloat8_e5m2},
    {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
    {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"complex64", at::kComplexFloat},
    {"complex128", at::kComplexDouble},
};

}  // namespace

at::ScalarType dtype_of(const nlohmann::json& name) {
  const bool is_wrapped = name.is_object() && name.size() == 1 && name.contains("$dtype");
  const nlohmann::json& given = is_wrapped ? name["$dtype"] : name;
  if (!given.is_string()) throw CaseError("dtype: unknown " + name.dump());
  std::string text = given.get<std::string>();
  if (text.starts_with("torch.")) text.erase(0, std::string("torch.").size());
  for (const auto& [known, dtype] : kDtypes) {
    if (text == known) return dtype;
  }
  throw CaseError("dtype: unknown " + name.dump());
}

std::string name_of(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) return name;
  }
  throw CaseError(std::string("no name for ") + c10::toString(dtype));
}

}  // namespace accelerate::golden
