/// What a training by the formula gives elsewhere: files that torch_answers.py writes.
///
/// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "integration_tests/tensor/formula_model.h"

namespace accelerate {

struct Answer {
  std::vector<double> losses;
  std::vector<double> norms;
};

struct Answers {
  Formula formula;
  int64_t rows = 0;
  int steps = 0;
  /// By layout and blocks, as in "tp 2, gpt".
  std::map<std::string, Answer> by_name;

  /// Null for what PyTorch cannot compute.
  const Answer* find(const std::string& layout, lm::Blocks blocks) const;
};

/// Errors: an exception of JSON's for a file that has something else, or is not there.
Answers read_answers(const std::string& path);

/// "gpt" or "llama".
const char* text_of(lm::Blocks blocks);

}  // namespace accelerate
