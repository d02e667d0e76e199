/// The state of one random number generator: a uint8 vector, whose length and meaning are those of
/// the generator's kind.
///
/// Threads: any; a generator is locked meanwhile.
#pragma once

#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace accelerate {

/// Local. The result is the caller's own.
at::Tensor generator_state(at::Generator generator);

/// Errors: c10::ValueError saying what is wrong if the state is not one of such a generator; the
/// generator is as it was then.
void set_generator_state(at::Generator generator, const at::Tensor& state);

/// The same errors, and sets nothing.
void check_generator_state(at::Generator generator, const at::Tensor& state);

/// A uint8 vector as text (base64), and back. Errors: c10::ValueError for text that is none.
std::string bytes_to_text(const at::Tensor& bytes);
at::Tensor bytes_from_text(const std::string& text);

}  // namespace accelerate
