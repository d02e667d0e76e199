#include "launch/process/signal_inbox.h"

#include <unistd.h>

#include "absl/log/absl_check.h"

namespace accelerate::launcher::process {

SignalInbox::SignalInbox() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    // A blocked signal would arrive even if it is ignored, so it must not be blocked.
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&wanted, signal);
  }
  sigaddset(&wanted, SIGCHLD);
  sigset_t blocked = wanted;
  // While a rank owns the terminal the launcher may still write to it and take it back.
  sigaddset(&blocked, SIGTTOU);
  ABSL_CHECK_EQ(sigprocmask(SIG_BLOCK, &blocked, &original_mask_), 0);
  // An inherited "ignore" of SIGCHLD would make exit codes disappear.
  signal(SIGCHLD, SIG_DFL);
  // A closed output is an error of write, not the end of the launcher.
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  ABSL_CHECK_EQ(sigaction(SIGPIPE, &ignore, &original_pipe_action_), 0);
  fd_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  ABSL_CHECK(fd_.is_open());
}

SignalInbox::~SignalInbox() { restore(); }

std::optional<signalfd_siginfo> SignalInbox::next() {
  signalfd_siginfo info;
  if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  return info;
}

void SignalInbox::suspend(pid_t target) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  // Unlike SIGSTOP, SIGTSTP does nothing in a group that no shell looks after.
  sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  kill(target, SIGTSTP);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
}

void SignalInbox::restore() const {
  sigaction(SIGPIPE, &original_pipe_action_, nullptr);
  sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
}

}  // namespace accelerate::launcher::process
