#include "accelerate/values/dtypes.h"

namespace accelerate {

std::string dtype_name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

const DtypeName* find_dtype(c10::ScalarType dtype) {
  return find_dtype(&DtypeName::torch, dtype_name(dtype));
}

c10::ScalarType scalar_type(const DtypeName& dtype) {
  return c10::getStringToDtypeMap().at(std::string(dtype.torch));
}

}  // namespace accelerate
