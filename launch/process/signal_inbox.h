/// The launcher's signals, delivered through a descriptor instead of through handlers.
///
/// From construction on, the signals that the launcher forwards or acts on wait until they are
/// read, so none is lost between two steps and no code runs inside a handler.
/// Threads: construct on the main thread before any other exists; one reader.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/types.h>

#include <optional>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {

class SignalInbox {
 public:
  /// A signal that the launcher was started to ignore (nohup ignores SIGHUP, a shell's background
  /// job SIGINT) stays ignored, here and in the ranks.
  SignalInbox();
  /// Puts the signal state of before back.
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// Readable when a signal waits.
  int fd() const { return fd_.get(); }

  /// The next signal that waits, or nothing. Never blocks.
  std::optional<signalfd_siginfo> next();

  /// Sends SIGTSTP to `target` (as for kill) and lets it act on the launcher too. Returns when the
  /// launcher was continued, or at once if no shell could continue it.
  static void suspend(pid_t target);

  /// The signal state of before, for a child between fork and exec. Async-signal-safe.
  void restore() const;

 private:
  UniqueFd fd_;
  sigset_t original_mask_;
  struct sigaction original_pipe_action_;
};

}  // namespace accelerate::launcher::process
