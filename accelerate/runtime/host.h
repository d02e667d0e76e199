/// The host's console and memory, for the Runtimes that use the real ones.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/runtime/runtime.h"

namespace accelerate::host {

void write_console(ConsoleStream stream, std::string_view text);

bool is_terminal(ConsoleStream stream);

/// The machine's name.
std::string name();

/// Returns unused pages of the heap to the system, if the C library can.
void release_free_memory();

}  // namespace accelerate::host
