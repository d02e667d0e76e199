/// Random numbers of simulated devices.
///
/// A device's default generator gives the numbers of a CPU generator with the same seed, so that a
/// run on the device repeats a run on the CPU. As on a GPU it is a separate generator: numbers
/// drawn on the device do not advance the CPU's. `torch::manual_seed` seeds the rank's generators.
#pragma once

#include <ATen/core/Generator.h>

namespace accelerate::simulator {

/// The default generator of a device, never destroyed; reset_default_generator() begins a run.
const at::Generator& default_generator(int device);
/// A fresh generator for a device.
at::Generator new_generator(int device);

/// Gives the device's default generator the state of a fresh process.
void reset_default_generator(int device);

/// The CPU generator behind a device's generator; `generator` itself if it is the CPU's.
at::Generator host_generator(const at::Generator& generator);

/// Makes the default CPU generator give the numbers of a device's default generator for a scope:
/// for operators on the device that do not take a generator.
class BorrowedGenerator {
 public:
  explicit BorrowedGenerator(int device);
  ~BorrowedGenerator();
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  const int device_;
};

/// Makes LibTorch's default CPU generator one that passes its seed on to the current rank's device,
/// for the rest of the process.
void install_seeding();

}  // namespace accelerate::simulator
