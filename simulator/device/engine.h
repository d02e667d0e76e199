/// The autograd engine of a process that simulates: a rank's backward pass runs on the rank's own
/// thread, hooks included, whatever device its tensors are on.
///
/// LibTorch's own engine runs a device's part on a thread of its own; ranks that meet in a
/// collective there could neither hold nor hand over the baton.
/// Errors: c10::Error from backward() for a graph that reaches a device of another rank.
#pragma once

namespace accelerate::simulator {

/// For the rest of the process. Idempotent; before the first simulated rank.
void install_engine();

}  // namespace accelerate::simulator
