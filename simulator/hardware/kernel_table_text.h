/// The tables of kernels/ as text. //tools/build_defs:embed.bzl makes these constants.
#pragma once

namespace accelerate::simulator {

extern const char kKernelsA100[];
extern const char kKernelsA100Pcie[];
extern const char kKernelsH100[];
extern const char kKernelsH200[];
extern const char kKernelsB200[];

}  // namespace accelerate::simulator
