#include "accelerate/platform/command_line.h"

#include <fstream>

namespace accelerate {

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  std::ifstream file("/proc/self/cmdline");
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  if (words.empty()) words.emplace_back("program");
  return words;
}

}  // namespace accelerate
