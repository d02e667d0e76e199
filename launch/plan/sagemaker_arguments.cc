#include "launch/plan/sagemaker_arguments.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace accelerate::launch::plan {
namespace {

using Json = nlohmann::ordered_json;

Json typed(const std::string& text) {
  if (text == "True") return true;
  if (text == "False") return false;
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !std::isfinite(number)) return text;
  constexpr double kExact = 9007199254740992;
  if (number == std::floor(number) && std::abs(number) <= kExact) {
    return static_cast<int64_t>(number);
  }
  return number;
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> sagemaker_hyperparameters(
    absl::Span<const std::string> arguments) {
  Json parameters = Json::object();
  for (size_t i = 0; i < arguments.size(); i += 2) {
    std::string name = arguments[i];
    const size_t dashes = name.find_first_not_of('-');
    if (name.empty() || name[0] != '-' || dashes == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("a SageMaker job takes pairs of --NAME and VALUE, not \"", name, "\""));
    }
    if (i + 1 == arguments.size() || absl::StartsWith(arguments[i + 1], "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no value; a SageMaker job takes pairs of --NAME and VALUE"));
    }
    name = absl::StrReplaceAll(name.substr(dashes), {{"-", "_"}});
    if (parameters.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(arguments[i], " occurs twice"));
    }
    parameters[name] = typed(arguments[i + 1]);
  }
  return parameters;
}

}  // namespace accelerate::launch::plan
