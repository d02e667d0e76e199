/// Suggestions for names that no preset or field has (accelerate/base/suggestion.h).
#pragma once

#include "accelerate/base/message_text.h"

namespace accelerate::simulator {

using accelerate::nearest_names;
using accelerate::suggestion;

}  // namespace accelerate::simulator
