#include "accelerate/files/safetensors_dtypes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

struct DtypeName {
  at::ScalarType type;
  const char* name;
  bool is_written = true;
};
constexpr DtypeName kDtypeNames[] = {{at::kBool, "BOOL"},
                                     {at::kByte, "U8"},
                                     {at::kChar, "I8"},
                                     {at::kFloat8_e5m2, "F8_E5M2"},
                                     {at::kFloat8_e4m3fn, "F8_E4M3"},
                                     {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ", false},
                                     {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ", false},
                                     {at::kShort, "I16"},
                                     {at::kUInt16, "U16"},
                                     {at::kHalf, "F16"},
                                     {at::kBFloat16, "BF16"},
                                     {at::kInt, "I32"},
                                     {at::kUInt32, "U32"},
                                     {at::kFloat, "F32"},
                                     {at::kComplexFloat, "C64", false},
                                     {at::kDouble, "F64"},
                                     {at::kLong, "I64"},
                                     {at::kUInt64, "U64"}};

}  // namespace

absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype) {
  for (const DtypeName& known : kDtypeNames) {
    if (known.type == dtype && known.is_written) return known.name;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the dtype ", c10::toString(dtype), " cannot be in safetensors files"));
}

absl::StatusOr<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype) {
  for (const DtypeName& known : kDtypeNames) {
    if (known.name == safetensors_dtype) return known.type;
  }
  return absl::UnimplementedError(
      absl::StrCat("its dtype is ", safetensors_dtype, ", which cannot be read"));
}

}  // namespace accelerate
