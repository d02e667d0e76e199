/// The UCI digits as tensors. The file is gzipped CSV, 64 pixels (0..16) and a label a line.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "accelerate/runtime/runtime.h"

namespace digits {

struct Split {
  at::Tensor images;  ///< float [n, 1, 8, 8], 0..1
  at::Tensor labels;  ///< int64 [n], 0..9
};

struct Dataset {
  Split train;
  Split test;
};

/// Reads the file and deals the rows out by `seed`: four fifths to train, the rest to test.
/// Errors: c10::Error naming the file, and the line for one that is malformed.
Dataset load(accelerate::Runtime& runtime, const std::string& path, uint64_t seed);

}  // namespace digits
