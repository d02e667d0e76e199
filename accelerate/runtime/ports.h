/// TCP ports of this machine, for a rendezvous.
///
/// They ask the machine itself, in a simulation as well, where ranks need no ports.
/// Between asking and using a port anybody may take it; the launcher avoids that by handing rank 0
/// a listening socket.
/// Errors: c10::ValueError for a number that is no port; c10::Error naming the system's reason.
/// Threads: any.
/// Mirrors: accelerate utils/other.py, is_port_in_use; utils/launch.py, get_free_port.
#pragma once

namespace accelerate {

/// Whether somebody accepts connections at 127.0.0.1. A port that is merely bound, or listened to
/// at IPv6 addresses only, is not in use.
bool is_port_in_use(int port = 29500);

/// A port that nobody has bound, neither for IPv4 nor for IPv6, nor used a moment ago.
int get_free_port();

}  // namespace accelerate
