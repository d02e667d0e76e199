/// Tells whose memory a tensor has, for reports of what fills a device.
///
/// Threads: as Runtime::shared, in which the receiver is kept.
#pragma once

#include <string_view>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// What a Runtime that counts memory by module keeps as `shared<MemoryNames>`.
class MemoryNames {
 public:
  virtual ~MemoryNames() = default;

  /// The tensor's memory is a parameter or a buffer of that name, a part or a gradient of one, or
  /// something made for it. The name is the one of torch::nn::Module::named_parameters().
  virtual void name(const at::Tensor& tensor, std::string_view name) = 0;
};

/// Tells the current Runtime's MemoryNames, if it has one.
void name_memory(const at::Tensor& tensor, std::string_view name);

}  // namespace accelerate
