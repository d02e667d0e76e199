// The cost of starting a program through the launcher: a program that does nothing, by itself and
// under `accelerate launch`, in turn; and 64 of them at once.
//
//   launch_benchmark LAUNCHER [PROGRAM]
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr int kManyRanks = 64;

// Milliseconds from the start of the command to its end. Ends the benchmark if the command fails.
double milliseconds(std::vector<std::string> command) {
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Not `run_command` (platform/child.h): its pipe would be measured too, and the launcher would
  // take its output for a log.
  const auto start = std::chrono::steady_clock::now();
  pid_t pid = 0;
  int status = 1;
  if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) == 0) {
    waitpid(pid, &status, 0);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (status != 0) {
    std::fprintf(stderr, "launch_benchmark: %s failed\n", argv[0]);
    std::exit(1);
  }
  return took.count();
}

struct Spread {
  double least, median, most;
};

Spread spread(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return {numbers.front(), numbers[numbers.size() / 2], numbers.back()};
}

// Runs both commands in turn and prints a row.
void compare(const char* what, int turns, const std::vector<std::string>& direct,
             const std::vector<std::string>& launched, const char* wanted) {
  std::vector<double> alone, through, difference;
  for (int turn = -1; turn < turns; ++turn) {
    const double first = milliseconds(direct);
    const double second = milliseconds(launched);
    if (turn < 0) continue;  // files come from the disk
    alone.push_back(first);
    through.push_back(second);
    difference.push_back(second - first);
  }
  const Spread more = spread(difference);
  std::printf("| %s | %.2f | %.2f | %.2f (%.2f to %.2f) | %s |\n", what, spread(alone).median,
              spread(through).median, more.median, more.least, more.most, wanted);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "launch_benchmark LAUNCHER [PROGRAM]\n");
    return 2;
  }
  const std::string launcher = argv[1];
  const std::string program = argc > 2 ? argv[2] : "/bin/true";
  const auto launched = [&](int ranks) {
    return std::vector<std::string>{launcher, "launch", "--num_processes", std::to_string(ranks),
                                    program};
  };
  std::printf("| processes | alone, ms | launched, ms | more, ms | wanted |\n");
  std::printf("| --- | ---: | ---: | ---: | --- |\n");
  compare("1", 101, {program}, launched(1), "at most 30 more");
  compare("64", 11, {program}, launched(kManyRanks), "at most 2000 in all");
  return 0;
}
