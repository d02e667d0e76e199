/// What the checks of a device share: an expectation that throws, and a run as a program of its
/// own.
#pragma once

#include <cmath>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include <c10/core/Device.h>

#include "absl/strings/str_cat.h"
#include "accelerate/process/run.h"

namespace accelerate::device_checks {

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

inline void expect_near(double a, double b, double tolerance, const std::string& what) {
  expect(std::abs(a - b) <= tolerance, absl::StrCat(what, ": ", a, " and ", b));
}

/// Runs the body as a program of its own would run, because what a rank once decided, as its
/// precision, holds for its whole life.
inline void as_program(const std::function<void()>& body) {
  char name[] = "device_checks";
  char* argv[] = {name, nullptr};
  std::exception_ptr error;
  const int code = run(1, argv, [&](int, char**) {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
    return 0;
  });
  if (error) std::rethrow_exception(error);
  expect(code == 0, "the program could not be run");
}

// ---- Models that are placed, stored or run otherwise (placement_checks.cc). Each is to be called
// in as_program().

/// A model whose blocks are on the device, in host memory and in files computes and trains what it
/// does as a whole.
void check_dispatch();
/// Layers that are kept in 8-bit floats compute what rounded weights do, and take a quarter of the
/// memory.
void check_layerwise_casting();
/// Weights in 8 bits, and in 4 bits: near the model's own outputs, equal to the CPU's, smaller;
/// adapters train.
void check_int8();
void check_nf4();
/// A captured training step, replayed, trains as one that is not captured.
void check_cuda_graph();

// ---- Operators.

/// Attention by blocks of keys, with its gradients, is attention (attention_check.cc).
void check_attention_blocks(c10::Device device);

}  // namespace accelerate::device_checks
