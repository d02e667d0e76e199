/// The tables of what kernels reach of a device's peaks: kernels/DEVICE.json, which README.md in
/// this folder describes, and files of users.
///
/// Threads: pure functions; tables live as long as the process.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"
#include "simulator/hardware/kernel_table.h"

namespace accelerate::simulator {

/// Reads a table. Errors: InvalidArgument that names the place as a JSON pointer with its line, or
/// the line of what is not JSON.
absl::StatusOr<KernelTable> parse_kernel_table(absl::string_view json);

/// Derives what lookups need from products and attention, after a change to them.
void derive(KernelTable& table);

/// The table of a device by its name in presets(); null if there is none.
const KernelTable* find_kernel_table(absl::string_view device);

/// The table in a file, read once in a process. Errors: InvalidArgument that names the file.
absl::StatusOr<const KernelTable*> kernel_table_in(const std::string& path);

/// The devices that have one.
std::vector<std::string> devices_with_kernel_table();

/// The table that the device's efficiency asks for; null under `ideal`.
const KernelTable* kernel_table_of(const DeviceModel& device);

}  // namespace accelerate::simulator
