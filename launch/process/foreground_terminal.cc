#include "launch/process/foreground_terminal.h"

#include <unistd.h>

namespace accelerate::launch::process {

bool owns_terminal() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

void lend_terminal(pid_t group) {
  if (owns_terminal()) tcsetpgrp(STDIN_FILENO, group);
}

void take_terminal_back(pid_t group) {
  if (tcgetpgrp(STDIN_FILENO) == group) tcsetpgrp(STDIN_FILENO, getpgrp());
}

}  // namespace accelerate::launch::process
