/// The C++ functions that led to an operator, as far as they are the user's.
///
/// LibTorch's own profiler keeps no C++ frames. Return addresses are read from unwind tables and
/// named from the symbol tables of the program and its libraries, so functions of a program that
/// was stripped, or that were inlined, do not appear. There are no lines or files.
/// Threads: any; names() is slow and is meant for the end of a recording.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace accelerate {

struct CallStack {
  static constexpr size_t kMaxDepth = 128;

  /// Of the caller, innermost first.
  static CallStack here();

  std::vector<void*> addresses;
};

/// Names functions; asks for each address once.
class FunctionNames {
 public:
  /// Without those of LibTorch, Abseil, the C and C++ libraries and this library's profiler.
  std::vector<std::string> names(const CallStack& stack);

 private:
  std::map<void*, std::string> name_by_address_;  // empty: not the user's
};

}  // namespace accelerate
