/// The release of this library and of its launcher. CMakeLists.txt reads it, too.
#pragma once

namespace accelerate {

inline constexpr char kAccelerateVersion[] = "0.9.0";

}  // namespace accelerate
