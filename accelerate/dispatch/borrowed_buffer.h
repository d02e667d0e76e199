/// Buffers that are on the main device of a dispatched model for a module that is offloaded, and go
/// back when the model is an ordinary one again.
///
/// Threads: the rank's thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace accelerate::internal {

struct BorrowedBuffer {
  /// The module's tensors: one under each of its names that is a tensor of its own.
  std::vector<at::Tensor> tensors = {};
  /// Where it was.
  c10::Device home;
  /// Where it is used.
  c10::Device device;
};

/// Moves it to where it was, with the values that it has now. Does nothing for one that the program
/// has moved since, and for one on a device that cannot be read any more, as after an error.
void restore_buffer(const BorrowedBuffer& buffer) noexcept;

}  // namespace accelerate::internal
