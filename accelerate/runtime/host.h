/// The host's console and memory, for the Runtimes that use the real ones.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/runtime/runtime.h"

namespace accelerate::host {

void write_console(ConsoleStream stream, std::string_view text);

bool is_terminal(ConsoleStream stream);

/// What the machine calls itself.
std::string name();

/// Returns pages that the heap keeps and nobody uses to the system, where the C library can.
void release_free_memory();

}  // namespace accelerate::host
