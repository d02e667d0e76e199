#include "accelerate/tracking/run/tensor_value.h"

#include <algorithm>
#include <string>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

std::string dtype_name(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat: return "float32";
    case c10::kDouble: return "float64";
    case c10::kHalf: return "float16";
    case c10::kBFloat16: return "bfloat16";
    case c10::kByte: return "uint8";
    case c10::kChar: return "int8";
    case c10::kShort: return "int16";
    case c10::kInt: return "int32";
    case c10::kLong: return "int64";
    case c10::kBool: return "bool";
    default: return c10::toString(type);
  }
}

// Its elements on the CPU, one after the other.
at::Tensor on_cpu(const at::Tensor& tensor, c10::ScalarType type) {
  return tensor.detach().to(c10::kCPU, type).contiguous();
}

}  // namespace

TrackerValue TrackerValueOf<at::Tensor>::make(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "a tracker cannot keep an undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided && !tensor.is_complex(),
                    "a tracker keeps dense tensors of real numbers, not ", tensor.toString());
  const at::Tensor numbers = on_cpu(tensor, c10::kDouble);
  const double* const data = numbers.const_data_ptr<double>();
  return TensorValue{.sizes = tensor.sizes().vec(),
                     .dtype = dtype_name(tensor.scalar_type()),
                     .values = std::vector<double>(data, data + numbers.numel())};
}

TrackerValue TrackerValueOf<c10::Scalar>::make(const c10::Scalar& scalar) {
  if (scalar.isBoolean()) return scalar.toBool();
  if (scalar.isIntegral(/*includeBool=*/false)) return scalar.toLong();
  TORCH_CHECK_VALUE(scalar.isFloatingPoint(), "a tracker keeps real numbers, not complex ones");
  return scalar.toDouble();
}

std::vector<TrackerImage> tracker_images(const at::Tensor& tensor, std::string_view dataformats) {
  TORCH_CHECK_VALUE(tensor.defined(), "log_images: a tensor is undefined");
  const auto refuse = [&](const char* reason) {
    TORCH_CHECK_VALUE(false, "log_images: a tensor of sizes ", tensor.sizes(),
                      " is not of the format \"", std::string(dataformats), "\": ", reason);
  };
  std::string letters(dataformats);
  std::sort(letters.begin(), letters.end());
  if (letters != "CHW" && letters != "CHNW" && letters != "HW" && letters != "HNW") {
    refuse("it must have an H and a W, and may have a C and an N, once each");
  }
  if (tensor.dim() != static_cast<int64_t>(dataformats.size())) refuse("dimensions differ");

  at::Tensor images = tensor.detach();
  std::string format(dataformats);
  for (const char missing : {'C', 'N'}) {
    if (format.find(missing) != format.npos) continue;
    images = images.unsqueeze(0);
    format.insert(format.begin(), missing);
  }
  const auto dimension = [&](char letter) { return static_cast<int64_t>(format.find(letter)); };
  images = images.permute({dimension('N'), dimension('H'), dimension('W'), dimension('C')});
  if (images.size(3) < 1 || images.size(3) > 4) refuse("there are 1 to 4 channels");
  if (images.size(1) == 0 || images.size(2) == 0) refuse("it has no pixels");
  if (images.is_floating_point()) {
    images = images.to(c10::kCPU, c10::kFloat).nan_to_num(0).clamp(0, 1).mul(255).round();
  } else if (images.scalar_type() == c10::kBool) {
    images = images.to(c10::kCPU, c10::kByte).mul(255);
  } else if (images.scalar_type() != c10::kByte) {
    refuse("pixels are bytes, or floats from 0 to 1");
  }
  images = on_cpu(images, c10::kByte);

  std::vector<TrackerImage> result;
  const uint8_t* data = images.const_data_ptr<uint8_t>();
  const int64_t bytes = images.size(1) * images.size(2) * images.size(3);
  for (int64_t i = 0; i < images.size(0); ++i, data += bytes) {
    result.push_back({.height = images.size(1),
                      .width = images.size(2),
                      .channels = images.size(3),
                      .pixels = std::vector<uint8_t>(data, data + bytes)});
  }
  return result;
}

}  // namespace accelerate
