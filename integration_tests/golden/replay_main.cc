// Replays golden files and prints what differs:
//
//   tools/dev bazel run //integration_tests/golden:replay -- FILE.json...
//
// Relative paths are relative to where bazel was called. The last line is the result; exit status
// 0: no case failed, 1: some did, 2: a file is not what it should be.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "integration_tests/golden/replay.h"

int main(int argc, char** argv) {
  const char* base = std::getenv("BUILD_WORKING_DIRECTORY");
  return accelerate::golden::run(std::vector<std::string>(argv + 1, argv + argc),
                                 base != nullptr ? base : "", std::cout, std::cerr);
}
