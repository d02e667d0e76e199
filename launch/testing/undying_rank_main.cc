// A rank that SIGKILL does not end, as one that is stuck in the kernel: the launcher does not hear
// of its end before its tracer does, which left its process group and does not listen.

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>

int main() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  const pid_t rank = getpid();
  const pid_t tracer = fork();
  char word = 0;
  if (tracer == 0) {
    setsid();
    // Only the process that it names may trace it.
    if (read(ends[1], &word, 1) != 1) return 1;
    if (ptrace(PTRACE_SEIZE, rank, nullptr, nullptr) != 0) return 1;
    std::puts("ready");
    std::fflush(stdout);
  } else {
    prctl(PR_SET_PTRACER, tracer);
    if (write(ends[0], &word, 1) != 1) return 1;
  }
  while (true) pause();
}
