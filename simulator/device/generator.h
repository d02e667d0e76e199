/// Random numbers of simulated devices.
///
/// A device's default generator gives the numbers of a CPU generator with the same seed, so that a
/// run on the device repeats a run on the CPU. As on a GPU it is a separate generator: numbers
/// drawn on the device do not advance the CPU's. `torch::manual_seed` seeds the rank's generators.
#pragma once

#include <ATen/core/Generator.h>

namespace accelerate::simulator {

class SimDevice;

/// The default generator of a device, which a run begins as a fresh process does.
const at::Generator& default_generator(SimDevice& device);
/// A fresh generator for the device of that index.
at::Generator new_generator(int index);

/// The CPU generator behind a device's generator; `generator` itself if it is the CPU's.
at::Generator host_generator(const at::Generator& generator);

/// LibTorch's default CPU generator. Who sets it must be the only one who uses it, as the rank that
/// holds the baton is.
at::Generator& default_cpu_generator();
/// A CPU generator in the state of a fresh process. It passes its seed on to the devices of the
/// current rank.
at::Generator new_cpu_generator();

/// Makes the CPU generator behind a device's default generator the default CPU generator for a
/// scope: for operators on the device that do not take a generator.
class BorrowedGenerator {
 public:
  explicit BorrowedGenerator(SimDevice& device);
  ~BorrowedGenerator();
  BorrowedGenerator(const BorrowedGenerator&) = delete;
  BorrowedGenerator& operator=(const BorrowedGenerator&) = delete;

 private:
  at::Generator other_;  // the one that is not in use
};

}  // namespace accelerate::simulator
