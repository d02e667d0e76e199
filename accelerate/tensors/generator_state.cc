#include "accelerate/tensors/generator_state.h"

#include <algorithm>
#include <mutex>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "absl/strings/escaping.h"

namespace accelerate {

at::Tensor generator_state(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  check_generator_state(generator, state);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

void check_generator_state(at::Generator generator, const at::Tensor& state) {
  TORCH_CHECK_VALUE(state.defined() && state.is_cpu() && state.scalar_type() == at::kByte &&
                        state.dim() == 1 && state.is_contiguous(),
                    "a generator's state must be a vector of bytes on the CPU");
  const int64_t expected = generator_state(generator).numel();
  TORCH_CHECK_VALUE(state.numel() == expected, "a generator's state has ", state.numel(),
                    " bytes, one for ", generator.device().type(), " has ", expected);
  // Only a generator can check the bytes.
  at::Generator trial;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    trial = generator.clone();
  }
  try {
    trial.set_state(state);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "a generator's state is damaged: ", error.what_without_backtrace());
  }
}

std::string bytes_to_text(const at::Tensor& bytes) {
  std::string text;
  absl::Base64Escape(absl::string_view(static_cast<const char*>(bytes.const_data_ptr()),
                                       static_cast<size_t>(bytes.numel())),
                     &text);
  return text;
}

at::Tensor bytes_from_text(const std::string& text) {
  std::string decoded;
  TORCH_CHECK_VALUE(absl::Base64Unescape(text, &decoded), "a generator's state is not base64: \"",
                    text.substr(0, 32), "\"");
  at::Tensor bytes = at::empty({static_cast<int64_t>(decoded.size())}, at::kByte);
  std::copy(decoded.begin(), decoded.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

}  // namespace accelerate
