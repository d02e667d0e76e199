/// The floors of each top-level folder, as its files' includes draw them, compared with the list in
/// tools/build_defs/floors.bzl.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/lint/tidy.h"

namespace accelerate::tidy {

/// The list of floors; `files` must hold it.
inline constexpr char kFloorsPath[] = "tools/build_defs/floors.bzl";

/// Everything in the includes that the list does not allow: an arrow to the same floor or upward, a
/// folder that is on no floor, another top-level folder's room that is not open, LibTorch in a room
/// without it, and a cycle of folders.
/// Tests, benchmarks and folders beside the floors (testing, examples) may include any room of
/// their top-level folder. integration_tests may include everything, and nothing includes them.
Findings check_floors(const std::vector<File>& files);

/// The folders with their floors, the highest first, and for each room the rooms that it includes.
/// The first line of a folder counts its rooms, arrows, upward arrows and folder cycles.
std::string draw_floors(const std::vector<File>& files);

}  // namespace accelerate::tidy
