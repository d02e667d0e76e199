/// A Python program that we talk to, line by line.
///
/// Its standard input and output are one socket, which is also what tells it that we are gone; its
/// standard error is a file in memory, so that it may print as much as it likes. It has a process
/// group of its own: a Ctrl-C at the terminal is not for it.
/// Errors:  std::runtime_error where there is no interpreter or no process can be made.
/// Threads: one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/platform/environment.h"

namespace accelerate::trackers {

/// The path of ACCELERATE_PYTHON or else of python3, as the PATH has it.
/// Errors: std::runtime_error naming what was looked for.
std::string find_python(const Environment& environment);

class PythonProcess {
 public:
  /// `program` is a text; `args` are sys.argv[1:].
  PythonProcess(const Environment& environment, const std::string& program,
                const std::vector<std::string>& args);
  /// Lets it end by itself for a moment, and then kills it.
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  /// Writes what the socket takes at once of `text`; how much that was. All, to one that is gone.
  size_t write_some(std::string_view text);

  /// What came since, maybe nothing.
  std::string read_some();

  /// Waits until there is something to read, or, if it is `writing`, room; or it is gone.
  void wait(absl::Duration limit, bool writing);

  /// Whether it has ended or closed its end, and all that it ever wrote was read.
  bool is_gone() const { return gone_; }

  /// No more comes from us.
  void close_input();

  /// Waits for its end; whether that came.
  bool join(absl::Duration limit);

  /// With all that it started and that stayed in its group.
  void kill();

  /// After a `join`: "exit status 1", "signal 9".
  std::string how_it_ended() const;

  /// What was printed since the last call, complete lines only; a line that is written over again
  /// and again counts as the last.
  std::vector<std::string> new_lines();

  /// The last few lines that it printed.
  std::string last_words() const;

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
  int printed_ = -1;
  off_t printed_read_ = 0;
  bool gone_ = false;
  std::optional<int> status_;
};

}  // namespace accelerate::trackers
