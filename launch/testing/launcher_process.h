/// A launcher under test: a real process with its streams in the test's hands.
///
/// Nothing here waits for a time to pass. What runs below the launcher says on its output that it
/// came somewhere, or waits for a line from the test; `everyone_is_gone` waits for the end of a
/// pipe that every process below the launcher holds open. Only a broken launcher meets the limit of
/// a minute without output, after which its test fails.
/// Threads: one user.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::testing {

// In every script: `read x <&8` takes a line that the test sends; 9 shows that somebody lives.
inline constexpr int kGoFd = 8;
inline constexpr int kAliveFd = 9;

/// A shell line that blocks for ever, but lets a trap run when its signal comes.
inline constexpr char kWaitForEver[] = "while :; do sleep 1000 & wait $!; done";

std::vector<std::string> lines_of(const std::string& text);

bool exists(pid_t pid);

struct LauncherSetup {
  std::vector<int> ignored_signals;
  /// `NAME=value` words on top of the test's own environment.
  std::vector<std::string> environment;
  /// Runs in the new process before the program: system calls only.
  std::function<void()> before_exec;
};

class LauncherProcess {
 public:
  /// `argv[0]` is the file to execute.
  explicit LauncherProcess(std::vector<std::string> argv, const LauncherSetup& setup = {});
  /// Kills it if it still runs.
  ~LauncherProcess();
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal);
  /// Lets one `read x <&8` go on.
  void go();
  void close_stdout() { stdout_.read_end.reset(); }
  void send_input(const std::string& text);

  /// The next line of standard output with its end; empty at the end of the output.
  std::string next_output_line();
  /// Reads standard output up to and including the next `count` lines that end in `ending`.
  std::vector<std::string> wait_for_lines(const std::string& ending, int count);
  /// Reads standard error up to and including the next line that contains `part`; returns it.
  std::string wait_for_error(const std::string& part);

  /// Standard output and error up to their ends. Call before `wait`: the launcher may need readers.
  void read_all();
  /// Exit code as a shell has it.
  int wait();
  int finish();

  /// The text that `read_all` read; lines that were waited for before are not in it.
  const std::string& stdout_text() const { return stdout_text_; }
  const std::string& stderr_text() const { return stderr_text_; }

  bool everyone_is_gone();

 private:
  struct Pipe {
    Pipe();
    UniqueFd read_end;
    UniqueFd write_end;
  };

  Pipe stdin_, stdout_, stderr_, go_, alive_;
  pid_t pid_ = -1;
  std::string stdout_text_;
  std::string stderr_text_;
};

}  // namespace accelerate::launcher::testing
