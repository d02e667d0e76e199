// Measures the kernels of a card: a file as in simulator/hardware/kernels.
//
//   accelerate launch --num_processes 1 kernel_table --device h100 --output h100.json
//
// Real times want a card that nothing else uses. A simulated card gives its own table back.
#include <fstream>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/time/time.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/partial_state.h"
#include "tools/kernel_table/measure.h"

namespace {

int measure(int argc, char** argv) {
  accelerate::MeasureOptions options;
  std::string output;
  CLI::App app("Measures the kernels of the device that this process computes on");
  app.add_option("--device", options.device,
                 "its name, as in --simulate 1x1:NAME; that of a simulated device is known");
  app.add_option("--multiprocessors", options.multiprocessors,
                 "of the device, if no table has them")
      ->check(CLI::PositiveNumber);
  app.add_option("--output", output, "the file to write; standard output else");
  CLI11_PARSE(app, argc, argv);

  accelerate::Runtime& runtime = accelerate::PartialState::get().runtime();
  if (options.device.empty()) options.device = runtime.device_name();
  options.date = absl::FormatTime("%Y-%m-%d", runtime.now(), absl::UTCTimeZone());
  const std::string text = accelerate::measure_kernel_table(options).dump(2) + "\n";
  if (output.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(output);
  file << text << std::flush;
  if (!file) {
    std::cerr << "kernel_table: cannot write " << output << std::endl;
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, measure); }
