#include "accelerate/values/byte_sizes.h"

#include <optional>

#include <c10/util/Exception.h>

#include "accelerate/base/number_text.h"

namespace accelerate {
int64_t convert_file_size_to_int(std::string_view size) {
  const std::optional<int64_t> bytes = parse_byte_size(size);
  TORCH_CHECK_VALUE(bytes, "\"", size,
                    "\" is not a size; give a number of bytes, or a text with a unit such as "
                    "\"5.0GB\" or \"512MiB\"");
  return *bytes;
}

int64_t convert_file_size_to_int(int64_t size) {
  TORCH_CHECK_VALUE(size >= 0, "a size cannot be negative, got ", size);
  return size;
}

double dtype_byte_size(c10::ScalarType dtype) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Bool:
    case ScalarType::UInt1: return 1.0 / 8;
    case ScalarType::UInt2:
    case ScalarType::QUInt2x4: return 2.0 / 8;
    case ScalarType::UInt3: return 3.0 / 8;
    case ScalarType::UInt4:
    case ScalarType::QUInt4x2: return 4.0 / 8;
    case ScalarType::UInt5: return 5.0 / 8;
    case ScalarType::UInt6: return 6.0 / 8;
    case ScalarType::UInt7: return 7.0 / 8;
    default: return static_cast<double>(c10::elementSize(dtype));
  }
}

double dtype_byte_size(CustomDtype dtype) {
  switch (dtype) {
    case CustomDtype::kFp8: return 1;
    case CustomDtype::kInt4: return 1.0 / 2;
    case CustomDtype::kInt2: return 1.0 / 4;
  }
  TORCH_CHECK_VALUE(false, "no such CustomDtype: ", static_cast<int>(dtype));
}

}  // namespace accelerate
