#include "accelerate/big_model/offload_dtypes.h"

#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"

namespace accelerate::internal {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {
    {at::kBool, "bool"},
    {at::kByte, "uint8"},
    {at::kChar, "int8"},
    {at::kUInt16, "uint16"},
    {at::kShort, "int16"},
    {at::kUInt32, "uint32"},
    {at::kInt, "int32"},
    {at::kUInt64, "uint64"},
    {at::kLong, "int64"},
    {at::kHalf, "float16"},
    {at::kBFloat16, "bfloat16"},
    {at::kFloat, "float32"},
    {at::kDouble, "float64"},
    {at::kComplexFloat, "complex64"},
    {at::kComplexDouble, "complex128"},
    {at::kFloat8_e4m3fn, "float8_e4m3fn"},
    {at::kFloat8_e5m2, "float8_e5m2"},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz"},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz"},
};

}  // namespace

std::string offload_dtype(at::ScalarType dtype, const std::string& tensor) {
  for (const auto& [type, name] : kDtypes) {
    if (dtype == type) return name;
  }
  TORCH_CHECK_VALUE(false, "cannot offload \"", tensor, "\": files of offloaded weights have no ",
                    dtype);
}

at::ScalarType scalar_type_of_offloaded(const std::string& dtype) {
  for (const auto& [type, name] : kDtypes) {
    if (dtype == name) return type;
  }
  throw CheckpointError(absl::StrCat("an offloaded weight has the unknown dtype \"", dtype, "\""));
}

}  // namespace accelerate::internal
