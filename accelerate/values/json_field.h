/// Forwards to accelerate/values/fields.h, which has these functions.
#pragma once

#include "accelerate/values/fields.h"
