/// Tensors as values and images of trackers: include it, and tensors convert.
///
///   accelerator.log({{"loss", loss}});  // of any device and type
///
/// A tensor is copied to the CPU when the value is made, which waits for what computes it.
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

/// What `tensor.item()` gives.
template <>
struct TrackerValueOf<c10::Scalar> {
  static TrackerValue make(const c10::Scalar& scalar);
};

/// The images in a tensor whose dimensions are, in order, those of `dataformats`: N (images), C
/// (1, 2, 3 or 4 channels), H and W; without C they are grey. Bytes are taken as they are, and
/// floats from 0 to 1 become 0 to 255. Errors: c10::ValueError naming shape and format.
std::vector<TrackerImage> tracker_images(const at::Tensor& tensor,
                                         std::string_view dataformats = "CHW");

}  // namespace accelerate
