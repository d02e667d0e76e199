/// Names of metrics and projects as names of files.
/// Threads: a pure function.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::trackers {

/// A relative path that stays below the folder it is put into: "train/loss" is "train/loss". Parts
/// that would lead elsewhere, characters that no terminal shows, and parts too long for a disk are
/// written otherwise: "../a" is "%2E./a", a newline "%0A". Never empty: of nothing it is "_".
std::string safe_path(std::string_view name);

}  // namespace accelerate::trackers
