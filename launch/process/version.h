/// The release.
#pragma once

namespace accelerate::launch::process {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace accelerate::launch::process
