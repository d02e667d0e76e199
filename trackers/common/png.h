/// Encodes images as PNG files, the format that all vendors take.
///
/// Errors:  std::invalid_argument for an image without pixels, with other than 1 to 4 channels, or
///          whose pixels are not height x width x channels; std::runtime_error with libpng's
///          reason, for example for a side of more than a million pixels.
/// Threads: a pure function.
#pragma once

#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// Grey, grey and alpha, RGB or RGBA with 8 bits, by the image's channels; lossless.
std::string encode_png(const TrackerImage& image);

}  // namespace accelerate::trackers
