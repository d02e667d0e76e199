#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/schema.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::plan {
namespace {

using Json = nlohmann::ordered_json;

// As HF Accelerate infers the type of a hyperparameter from its word.
Json typed(const std::string& text) {
  if (text == "True") return true;
  if (text == "False") return false;
  double number = 0;
  if (!absl::SimpleAtod(text, &number) || !std::isfinite(number)) return text;
  // Up to 2^53, where doubles hold every integer.
  constexpr double kExact = 9007199254740992;
  if (number == std::floor(number) && std::abs(number) <= kExact) {
    return static_cast<int64_t>(number);
  }
  return number;
}

// Rows of a table with tabs, without its heading and empty lines.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> read_table(
    const PlanInputs& inputs, const char* name) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (!inputs.settings.is_set(name)) return rows;
  const std::string path = inputs.settings.text(name);
  ACCELERATE_ASSIGN_OR_RETURN(const std::string text, named_file(inputs, path));
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (number == 1 || absl::StripAsciiWhitespace(line).empty()) continue;
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '\t');
    if (cells.size() != 2) {
      return invalid(path, ":", number, ": expected two columns with a tab between them");
    }
    rows.emplace_back(absl::StripAsciiWhitespace(cells[0]), absl::StripAsciiWhitespace(cells[1]));
  }
  return rows;
}

Json channel(const std::string& name, const std::string& uri) {
  return {{"ChannelName", name},
          {"DataSource",
           {{"S3DataSource",
             {{"S3DataType", "S3Prefix"},
              {"S3Uri", uri},
              {"S3DataDistributionType", "FullyReplicated"}}}}}};
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> sagemaker_hyperparameters(
    absl::Span<const std::string> arguments) {
  Json parameters = Json::object();
  for (size_t i = 0; i < arguments.size(); i += 2) {
    std::string name = arguments[i];
    const size_t dashes = name.find_first_not_of('-');
    if (name.empty() || name[0] != '-' || dashes == std::string::npos) {
      return invalid("a SageMaker job takes pairs of --NAME and VALUE, not \"", name, "\"");
    }
    if (i + 1 == arguments.size() || absl::StartsWith(arguments[i + 1], "-")) {
      return invalid(name, " has no value; a SageMaker job takes pairs of --NAME and VALUE");
    }
    name = absl::StrReplaceAll(name.substr(dashes), {{"-", "_"}});
    if (parameters.contains(name)) {
      return invalid(arguments[i], " occurs twice");
    }
    parameters[name] = typed(arguments[i + 1]);
  }
  return parameters;
}

absl::StatusOr<SageMakerPlan> plan_sagemaker(const PlanInputs& inputs,
                                             std::vector<std::string>* notes) {
  const settings::Settings& settings = inputs.settings;
  const std::string type = settings.text("distributed_type");
  if (type == to_string(SageMakerDistributedType::kModelParallel)) {
    return invalid(settings.describe("distributed_type"),
                   " is a library of Amazon's for Python; leave the key out, or write NO");
  }
  if (type == to_string(SageMakerDistributedType::kDataParallel)) {
    notes->push_back(absl::StrCat(settings.describe("distributed_type"),
                                  ": the ranks of the job exchange by NCCL, and not by Amazon's "
                                  "library for Python"));
  }
  for (const char* name : {"pytorch_version", "transformers_version", "py_version"}) {
    if (settings.is_default(name)) continue;
    notes->push_back(absl::StrCat(settings.describe(name),
                                  " has no effect: image_uri names the container with all that is "
                                  "in it"));
  }
  ACCELERATE_ASSIGN_OR_RETURN(
      const Json parameters,
      sagemaker_hyperparameters(absl::MakeConstSpan(inputs.command).subspan(1)));
  ACCELERATE_ASSIGN_OR_RETURN(const auto inputs_table, read_table(inputs, "sagemaker_inputs_file"));
  ACCELERATE_ASSIGN_OR_RETURN(const auto metrics, read_table(inputs, "sagemaker_metrics_file"));

  Json job;
  job["TrainingJobName"] =
      settings.is_set("base_job_name")
          ? settings.text("base_job_name")
          : absl::StrCat("accelerate-sagemaker-", settings.number("num_machines"));
  Json& algorithm = job["AlgorithmSpecification"];
  if (settings.is_set("image_uri")) algorithm["TrainingImage"] = settings.text("image_uri");
  algorithm["TrainingInputMode"] = "File";
  algorithm["ContainerEntrypoint"] = Json::array({"accelerate", "launch", inputs.command[0]});
  // A container with an entry point of its own gets hyperparameters in a file only.
  if (inputs.command.size() > 1) {
    algorithm["ContainerArguments"] =
        std::vector<std::string>(inputs.command.begin() + 1, inputs.command.end());
  }
  for (const auto& [name, regex] : metrics) {
    algorithm["MetricDefinitions"].push_back({{"Name", name}, {"Regex", regex}});
  }
  job["RoleArn"] = settings.text("iam_role_name");
  job["ResourceConfig"] = {{"InstanceType", settings.text("ec2_instance_type")},
                           {"InstanceCount", settings.number("num_machines")},
                           {"VolumeSizeInGB", 30}};
  job["StoppingCondition"] = {{"MaxRuntimeInSeconds", 86400}};
  // AWS takes strings only; SageMaker's containers parse them as JSON.
  for (const auto& [name, value] : parameters.items()) {
    job["HyperParameters"][name] =
        value.is_string() ? value.get<std::string>() : accelerate::internal::exact_json_text(value);
  }
  for (const auto& [name, uri] : inputs_table) {
    job["InputDataConfig"].push_back(channel(name, uri));
  }
  for (const auto& [name, value] :
       settings::child_environment(settings, inputs.machine, inputs.environment)) {
    // Threads are counted for the cores of this machine, and the job runs on others.
    if (value && !absl::StartsWith(name, "OMP_")) job["Environment"][name] = *value;
  }
  job["Environment"]["ACCELERATE_USE_SAGEMAKER"] = "true";
  job["Environment"]["ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"] = settings.text("distributed_type");
  if (settings.is_set("additional_args")) {
    const Json more = Json::parse(settings.text("additional_args"), nullptr, false);
    if (!more.is_object()) {
      return invalid(settings.config_path(), ": additional_args: expected keys of a training job");
    }
    // After all other keys, so that the user's take precedence.
    job.merge_patch(more);
  }
  if (!job["AlgorithmSpecification"].contains("TrainingImage")) {
    const absl::Status missing = invalid(
        settings.config_path(), " has no image_uri; name a container image that has the program ",
        inputs.command[0], " in it");
    if (!settings.flag("dry_run")) return missing;
    notes->push_back(std::string(missing.message()));
  }
  if (!job.contains("OutputDataConfig")) {
    notes->push_back(
        "the job has no place for its output; set additional_args: {OutputDataConfig: "
        "{S3OutputPath: s3://...}} in the configuration file");
  }
  if (!absl::StartsWith(settings.text("iam_role_name"), "arn:")) {
    notes->push_back(absl::StrCat("AWS takes the ARN of a role, and iam_role_name is the name \"",
                                  settings.text("iam_role_name"),
                                  "\"; the start of the job asks aws iam get-role for its ARN"));
  }
  SageMakerPlan plan;
  plan.job = std::move(job);
  plan.aws = {"aws", "--region", settings.text("region")};
  if (settings.is_set("profile")) {
    plan.aws.insert(plan.aws.end(), {"--profile", settings.text("profile")});
  }
  for (const char* name : {"aws_access_key_id", "aws_secret_access_key"}) {
    if (settings.is_typed(name)) {
      plan.environment[settings::setting(name).variable_name()] = settings.text(name);
    }
  }
  return plan;
}

}  // namespace accelerate::launcher::plan
