/// Work of a rank's host that takes time, told to whoever keeps a virtual clock.
///
/// Where time is real the work itself takes it, and nobody is told. In a simulation operators on
/// the host take none, so what would take long on a real machine says so: an optimizer's update of
/// parameters on the host.
///
/// Threads: the rank's thread.
#pragma once

namespace accelerate {

class HostWork {
 public:
  virtual ~HostWork() = default;

  /// This rank's host has moved so many bytes between its memory and its cores, once for each time
  /// that they were read or written. Other ranks may run meanwhile. Local.
  virtual void moved(double bytes) = 0;

  /// Of the current Runtime, which has put it among what is shared; null where nobody is told.
  static HostWork* find();
};

}  // namespace accelerate
