/// `accelerate estimate-memory MODEL`: what a model takes to load, and to train.
///
/// MODEL is what launch/estimate/architecture.h reads. Nothing is loaded, and nothing downloaded.
/// Mirrors: accelerate commands/estimate.py.
/// Differs: see architecture.h and memory_estimate.h.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kEstimateMemory;

}  // namespace accelerate::launch::commands
