/// Facts about this machine as text.
///
/// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace accelerate::launch::commands {

/// The compiler that made this program: "GCC 14.2.0, C++20".
std::string compiler_text();

/// "optimised, assertions on, address sanitizer".
std::string build_options_text();

/// "Linux-6.1.0-x86_64-with-glibc2.41".
std::string platform_text();

/// The running program's file.
std::string executable_path();

/// The processor's name, and how many of them this process may use.
std::string cpu_text();

/// The size of main memory; 0: unknown.
double memory_bytes();

/// Devices by their files below `root`/dev, and NVIDIA's names by `root`/proc: "2 x NVIDIA H200",
/// "4 x /dev/davinci*"; empty for a machine without.
std::vector<std::string> device_texts(const std::string& root = "");

}  // namespace accelerate::launch::commands
