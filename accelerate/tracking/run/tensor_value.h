/// Converts tensors to values and images of trackers; include it to log tensors directly.
///
///   accelerator.log({{"loss", loss}});  // a tensor of any device and dtype
///
/// Making a value copies the tensor to the CPU, and so waits for its computation.
/// Threads: the rank's thread.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "accelerate/tracking/tracker.h"
#include "accelerate/tracking/value.h"

namespace accelerate {

template <>
struct TrackerValueOf<at::Tensor> {
  /// Errors: c10::ValueError for an undefined tensor, and for a sparse or complex one.
  static TrackerValue make(const at::Tensor& tensor);
};

/// The result of `tensor.item()`.
template <>
struct TrackerValueOf<c10::Scalar> {
  static TrackerValue make(const c10::Scalar& scalar);
};

/// The images of a tensor. `dataformats` names its dimensions in order: N (images, optional), C (1
/// to 4 channels, optional; without it, images are grey), H and W. Bytes are kept; floats from 0 to
/// 1 are scaled to 0 to 255. Errors: c10::ValueError naming shape and format.
std::vector<TrackerImage> tracker_images(const at::Tensor& tensor,
                                         std::string_view dataformats = "CHW");

}  // namespace accelerate
