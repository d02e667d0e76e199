/// The parts of the host that a rank's process uses: console, memory, threads, ports.
///
/// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

namespace host {

void write_console(ConsoleStream stream, std::string_view text);

bool is_terminal(ConsoleStream stream);

/// The machine's name.
std::string name();

/// Bytes that processes can still take without swapping; absent if the system does not say.
std::optional<int64_t> available_memory();

/// Returns unused pages of the heap to the system, if the C library can.
void release_free_memory();

}  // namespace host

/// One thread for LibTorch and for the BLAS it calls, unless OMP_NUM_THREADS is set: results differ
/// in their last bits with the number of threads, and ranks share a machine. Process-wide.
void limit_intra_op_threads(const Environment& environment);

// ---- TCP ports of this machine, for a rendezvous.
//
// These ask the machine itself, in a simulation as well, where ranks need no ports. Another process
// may take a port before it is used; the launcher avoids that by handing rank 0 a listening socket.
// Errors: c10::ValueError for a number that is not a port; c10::Error with the system's reason.
// Mirrors: accelerate utils/other.py, is_port_in_use; utils/launch.py, get_free_port.

/// Whether a process accepts connections on the port at 127.0.0.1. A port that is merely bound, or
/// listened on at IPv6 addresses only, is not in use.
bool is_port_in_use(int port = 29500);

/// A port that is bound neither for IPv4 nor for IPv6 and was not used a moment ago.
int get_free_port();

}  // namespace accelerate
