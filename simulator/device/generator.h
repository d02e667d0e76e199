/// Random numbers of simulated devices.
///
/// A device's default generator gives the numbers of a CPU generator with the same seed, so that a
/// run on the device repeats a run on the CPU. As on a GPU it is a separate generator: numbers
/// drawn on the device do not advance the CPU's. `torch::manual_seed` seeds the rank's generators.
#pragma once

#include <ATen/core/Generator.h>

namespace accelerate::simulator {

class SimDevice;

/// The default generator of a device; reset_default_generator() begins a run.
const at::Generator& default_generator(SimDevice& device);
/// A fresh generator for the device of that index.
at::Generator new_generator(int index);

/// Makes the device's default generator that of a fresh process.
void reset_default_generator(SimDevice& device);

/// The CPU generator behind a device's generator; `generator` itself if it is the CPU's.
at::Generator host_generator(const at::Generator& generator);

/// Makes the default CPU generator give the numbers of a device's default generator for a scope:
/// for operators on the device that do not take a generator.
class BorrowedGenerator {
 public:
  explicit BorrowedGenerator(SimDevice& device);
  ~BorrowedGenerator();
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  SimDevice& device_;
};

/// Makes LibTorch's default CPU generator one that passes its seed on to the current rank's
/// devices, for the rest of the process.
void install_seeding();

}  // namespace accelerate::simulator
