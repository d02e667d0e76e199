#include "integration_tests/tensor/answers.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace accelerate {

const char* text_of(lm::Blocks blocks) { return blocks == lm::Blocks::kGpt ? "gpt" : "llama"; }

const Answer* Answers::find(const std::string& layout, lm::Blocks blocks) const {
  const auto found = by_name.find(layout + ", " + text_of(blocks));
  return found != by_name.end() ? &found->second : nullptr;
}

Answers read_answers(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json all = nlohmann::json::parse(file);
  const nlohmann::json& formula = all.at("formula");
  Answers answers;
  answers.formula.text.clear();
  for (const nlohmann::json& piece : formula.at("text")) {
    answers.formula.text += piece.get<std::string>();
  }
  answers.formula.matrix_scale = formula.at("matrix_scale").get<double>();
  answers.formula.bias_scale = formula.at("bias_scale").get<double>();
  answers.formula.norm_scale = formula.at("norm_scale").get<double>();
  answers.rows = formula.at("rows").get<int64_t>();
  answers.steps = formula.at("steps").get<int>();
  for (const auto& [name, answer] : all.at("answers").items()) {
    answers.by_name[name] = {.losses = answer.at("losses").get<std::vector<double>>(),
                             .norms = answer.at("norms").get<std::vector<double>>()};
  }
  return answers;
}

}  // namespace accelerate
