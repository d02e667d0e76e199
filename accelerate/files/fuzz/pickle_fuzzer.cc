// Any bytes are either refused, or a pickle of a value that can be walked through to its end.
#include <cstddef>
#include <cstdint>
#include <string>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros.h>

#include "absl/log/absl_check.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/files/torch_file.h"

namespace {

absl::StatusOr<c10::Storage> storage(const std::string& key) {
  if (key.size() > 1) return absl::DataLossError("it is not there");
  return at::zeros({64}, at::kByte).storage();
}

size_t places_in(const c10::IValue& value) {
  size_t places = 1;
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) places += places_in(item);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) places += places_in(item);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      places += places_in(entry.key()) + places_in(entry.value());
    }
  } else if (value.isString()) {
    places += value.toStringRef().size();
  } else if (value.isTensor()) {
    // Reads the last byte too.
    const at::Tensor& tensor = value.toTensor();
    if (tensor.numel() > 0 && tensor.numel() <= 64) tensor.clone();
  }
  return places;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view pickle(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<c10::IValue> value = accelerate::internal::read_pickle(pickle, storage);
  if (value.ok()) ABSL_CHECK_LE(places_in(*value), 64 * size + (size_t{1} << 20));
  return 0;
}
