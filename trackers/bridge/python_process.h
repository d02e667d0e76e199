/// A Python process, its input and its output.
///
/// Its standard input and output are one socket, which also tells it that this process has ended;
/// its standard error is a file in memory, so that printing never blocks. It has a process group of
/// its own, so that Ctrl-C at the terminal does not reach it. Errors:  std::runtime_error if there
/// is no interpreter, or if no process can be made. Threads: one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/platform/environment.h"

namespace accelerate::trackers {

/// The path of the interpreter ACCELERATE_PYTHON, else of python3, looked up in PATH.
/// Errors: std::runtime_error naming the program that is missing.
std::string find_python(const Environment& environment);

class PythonProcess {
 public:
  /// `program`: the source text; `args`: sys.argv[1:].
  PythonProcess(const Environment& environment, const std::string& program,
                const std::vector<std::string>& args);
  /// Gives the process two seconds to end by itself, then kills it.
  ~PythonProcess();
  PythonProcess(const PythonProcess&) = delete;
  PythonProcess& operator=(const PythonProcess&) = delete;

  /// Writes as much of `text` as the socket takes at once, and returns that number of bytes; all of
  /// them if the process has ended.
  size_t write_some(std::string_view text);

  /// The output since the last call; may be empty.
  std::string read_some();

  /// Waits until there is output to read, or room to write if `writing`, or the process has ended.
  void wait(absl::Duration limit, bool writing);

  /// Whether the process has ended or closed its output, and all of it was read.
  bool is_gone() const { return gone_; }

  /// Ends the process's input.
  void close_input();

  /// Waits for the end of the process; false if `limit` passes before.
  bool join(absl::Duration limit);

  /// Kills the process and all processes of its group.
  void kill();

  /// After a `join`: "exit status 1", "signal 9".
  std::string how_it_ended() const;

  /// The complete lines on standard error since the last call; of a line that overwrites itself,
  /// such as a progress bar, the final text.
  std::vector<std::string> new_lines();

  /// The last few lines on standard error.
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
