/// Work of a rank's host that takes time, for a Runtime with a virtual clock.
///
/// Where time is real the work itself takes it, and no Runtime has a HostWork. In a simulation
/// operators on the host take no time, so code whose work would take long on a real machine
/// announces it: an optimizer's update of parameters on the host.
///
/// Threads: the rank's thread.
#pragma once

namespace accelerate {

class HostWork {
 public:
  virtual ~HostWork() = default;

  /// Announces that an optimizer has updated parameters on this rank's host, which moved so many
  /// bytes between its memory and its cores, once for each time that they were read or written.
  /// Other ranks may run meanwhile. Local.
  virtual void updated_parameters(double bytes) = 0;

  /// The one that the current Runtime shares (Runtime::shared); null where time is real, and where
  /// no hardware is named.
  static HostWork* find();
};

}  // namespace accelerate
