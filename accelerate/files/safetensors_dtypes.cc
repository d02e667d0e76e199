#include "accelerate/files/safetensors_dtypes.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/values/dtypes.h"

namespace accelerate {
namespace {

bool is_written(const DtypeName& dtype) {
  return !dtype.safetensors.empty() && dtype.safetensors != "C64" &&
         !dtype.safetensors.ends_with("FNUZ");
}

}  // namespace

absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype) {
  const DtypeName* known = find_dtype(dtype);
  if (known != nullptr && is_written(*known)) return std::string(known->safetensors);
  return absl::InvalidArgumentError(
      absl::StrCat("the dtype ", c10::toString(dtype), " cannot be in safetensors files"));
}

absl::StatusOr<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype) {
  const DtypeName* known = find_dtype(&DtypeName::safetensors, safetensors_dtype);
  if (known != nullptr) return scalar_type(*known);
  return absl::UnimplementedError(
      absl::StrCat("its dtype is ", safetensors_dtype, ", which cannot be read"));
}

}  // namespace accelerate
