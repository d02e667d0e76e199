/// TCP ports of this machine, for a rendezvous.
///
/// The functions ask the machine itself, in a simulation as well, where ranks need no ports.
/// Another process may take a port before it is used; the launcher avoids that by handing rank 0 a
/// listening socket.
/// Errors: c10::ValueError for a number that is not a port; c10::Error with the system's reason.
/// Threads: any.
/// Mirrors: accelerate utils/other.py, is_port_in_use; utils/launch.py, get_free_port.
#pragma once

namespace accelerate {

/// Whether a process accepts connections on the port at 127.0.0.1. A port that is merely bound, or
/// listened on at IPv6 addresses only, is not in use.
bool is_port_in_use(int port = 29500);

/// A port that is bound neither for IPv4 nor for IPv6 and was not used a moment ago.
int get_free_port();

}  // namespace accelerate
