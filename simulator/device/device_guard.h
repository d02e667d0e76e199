/// What LibTorch asks of any device type: the current device, streams and events. Streams' time is
/// virtual: an event remembers when the work before it ends.
///
/// Threads: as LibTorch's; a device's streams belong to its rank.
#pragma once

namespace accelerate::simulator {

/// For the rest of the process. Idempotent.
void install_device_guard();

}  // namespace accelerate::simulator
