/// An image as the bytes of a PNG file, which is how all vendors take images.
///
/// Errors:  std::invalid_argument for an image without pixels, with other than 1 to 4 channels, or
///          whose pixels are not height x width x channels; std::runtime_error with what libpng
///          says, as for a side of more than a million pixels.
/// Threads: a pure function.
#pragma once

#include <string>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// Grey, grey and alpha, RGB or RGBA of 8 bits, by the image's channels. Nothing is lost.
std::string encode_png(const TrackerImage& image);

}  // namespace accelerate::trackers
