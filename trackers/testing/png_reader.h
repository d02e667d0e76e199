/// The pixels of PNG bytes, read by libpng: what tests compare logged images with.
///
/// Errors:  std::runtime_error with what libpng says.
/// Threads: a pure function.
#pragma once

#include <string_view>

#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

/// With as many channels as the file has.
TrackerImage decode_png(std::string_view bytes);

}  // namespace accelerate::trackers
