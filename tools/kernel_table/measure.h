/// Measures on this rank's device what simulator/hardware/kernels/DEVICE.json says of one.
///
/// The same program measures a real card and a simulated one, whose table it has to give back.
/// Threads: the rank's own.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace accelerate {

struct MeasureOptions {
  /// The device's name in simulator/hardware/presets.h, which has the peaks.
  std::string device;
  /// 0: those of the table that there is.
  int multiprocessors = 0;
  /// For /sources: the day of the measurement.
  std::string date;
};

/// A table that parse_kernel_table reads. What it does not measure (tiles, products in 8 bits, a
/// collective) is an estimate, of the table that there is or of the card's other figures. Takes a
/// minute. Errors: c10::ValueError for a device without preset, or whose multiprocessors are
/// unknown.
nlohmann::ordered_json measure_kernel_table(const MeasureOptions& options);

}  // namespace accelerate
