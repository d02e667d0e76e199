/// The table of accelerate/docs/performance_log.md about the training step: a row per measurement,
/// each beside its floor, which is LibTorch or Gloo alone, taken in turn with it in one run.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace accelerate::step_benchmark {

struct Row {
  std::string measured;
  double alone = 0;  ///< us
  double here = 0;   ///< us
  /// The figure, and the target by which it is judged: "+0.1 us", "5.2 times as fast".
  std::string result;
  std::string wanted;
  std::string peer = "";
};

void print_header();
void print(const Row& row);

double median(std::vector<double> values);

template <typename Fn>
double microseconds(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

/// The loop of a tiny network, with one micro-step per optimizer step, the same with a plan of
/// tensor parallelism and one rank, and with four micro-steps.
void measure_loop();
/// Steps of 400 tensors of 64, 1,024 and 16,384 elements.
void measure_optimizers();
/// A step of 25 million parameters; on each of two ranks, of which the first prints.
void measure_data_parallel();

}  // namespace accelerate::step_benchmark
