/// The script that makes packages of recorded regions, tools/compile_regions.py.
/// //tools/build_defs:embed.bzl makes this constant.
#pragma once

namespace accelerate::launcher::commands {

extern const char kCompileRegions[];

}  // namespace accelerate::launcher::commands
