/// The properties of this machine that plans depend on.
///
/// A plain struct that tests fill in. Nothing here needs a driver's library (devices.h), so a
/// machine whose driver is broken may seem to have devices that a rank cannot use; preflight and
/// ranks tell.
/// Errors:  none; what cannot be found out is not there.
/// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launch::settings {

enum class MpiFlavour {
  kOpenMpi,
  kOther,  ///< Intel MPI, MPICH, MVAPICH: the same options
};

struct MpiProgram {
  std::string name;  ///< "mpirun" or "mpiexec"
  MpiFlavour flavour = MpiFlavour::kOpenMpi;
};

struct Machine {
  /// As Devices::kind.
  std::string device_kind = "cpu";
  /// Those that a rank sees, unless it is told otherwise.
  int devices = 0;
  /// With those that a variable hides.
  int installed_devices = 0;
  /// Whether devices of this machine compute in these. Only a driver knows, which `this_machine`
  /// does not ask: ranks find out.
  bool has_bf16 = true;
  bool has_fp8 = true;
  /// Whether devices can reach one another's memory; without it NCCL has to be told.
  bool has_peer_access = true;

  /// Functions, since the answers take time: plans call them only when needed.
  std::function<int()> count_physical_cores = [] { return 1; };
  /// Starts the program to see what it is.
  std::function<std::optional<MpiProgram>()> find_mpi = [] { return std::nullopt; };
  /// Whether a program on this machine accepts connections at the port.
  std::function<bool(uint16_t)> is_port_in_use = [](uint16_t) { return false; };
  std::function<uint16_t()> find_free_port = [] { return 0; };
  /// Whether PATH has the program.
  std::function<bool(const std::string&)> has_program = [](const std::string&) { return false; };
  /// The text of a file; nothing if it cannot be read.
  std::function<std::optional<std::string>(const std::string&)> read_file = [](const std::string&) {
    return std::nullopt;
  };
};

/// The machine that this process runs on. `environment` holds `NAME=value` words.
Machine this_machine(absl::Span<const std::string> environment);

/// The flavour that prints this for --version.
MpiFlavour mpi_flavour(absl::string_view version_text);

}  // namespace accelerate::launch::settings
