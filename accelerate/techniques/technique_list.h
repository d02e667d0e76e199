/// All techniques that models can have.
///
/// A new technique is a file in the room that it belongs to and a row here.
/// Threads: constant.
#pragma once

#include "accelerate/parallel/apply.h"

namespace accelerate {

/// In the order in which they are made; see parallel/apply.h.
TechniqueList all_techniques();

}  // namespace accelerate
