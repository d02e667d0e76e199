/// The host's files, console and memory, for the Runtimes that use the real ones.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::host {

/// Errors: NotFound, PermissionDenied, ... naming the path.
absl::StatusOr<std::string> read_file(const std::string& path);

/// As Runtime::write_file.
absl::Status write_file(const std::string& path, std::string_view contents);

void write_console(ConsoleStream stream, std::string_view text);

bool is_terminal(ConsoleStream stream);

/// Returns pages that the heap keeps and nobody uses to the system, where the C library can.
void release_free_memory();

}  // namespace accelerate::host
