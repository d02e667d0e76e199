/// Features of which ranks have parts, as logits, once a model has given them to its caller: there
/// no handler sees operators, and those that need all features would silently take the part.
///
/// Mechanism: a managed storage (operators/managed_storage.h), whose owner sees what uses it.
/// Threads:   any.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// A tensor with the memory of `part`, and in its place in autograd's graph. An operator that needs
/// all features, as a cross-entropy, is a c10::ValueError: `text` follows the operator's name. The
/// tensor itself if its elements do not follow each other in memory. Local.
at::Tensor cut_output(const at::Tensor& part, std::string text);

}  // namespace accelerate
