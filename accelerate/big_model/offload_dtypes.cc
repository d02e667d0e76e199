#include "accelerate/big_model/offload_dtypes.h"

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/values/dtypes.h"

namespace accelerate::internal {

std::string offload_dtype(at::ScalarType dtype, const std::string& tensor) {
  const DtypeName* known = find_dtype(dtype);
  TORCH_CHECK_VALUE(known != nullptr, "cannot offload \"", tensor,
                    "\": files of offloaded weights have no ", dtype);
  return std::string(known->torch);
}

at::ScalarType scalar_type_of_offloaded(const std::string& dtype) {
  if (const DtypeName* known = find_dtype(&DtypeName::torch, dtype)) return scalar_type(*known);
  throw CheckpointError(absl::StrCat("an offloaded weight has the unknown dtype \"", dtype, "\""));
}

}  // namespace accelerate::internal
