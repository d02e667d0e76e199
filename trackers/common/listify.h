/// Values without tensors, for vendors that know none.
///
/// Threads: pure functions.
/// Mirrors: accelerate utils.operations.listify.
#pragma once

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// With lists for tensors, also within lists and dictionaries; one without dimensions is a number,
/// an int, a bool or a float by its type.
TrackerValue listify(const TrackerValue& value);
TrackerDict listify(const TrackerDict& dict);

}  // namespace accelerate::trackers
