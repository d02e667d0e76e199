#include "accelerate/options/rows.h"

namespace accelerate::options {
namespace {

using enum Group;
using enum ValueType;

// At the top of files for SageMaker, and there alone.
constexpr Row sagemaker(const char* name, const char* help, Question question = {}) {
  return file_only(kSageMaker, name, kText, help, question).in(Section::kSageMaker);
}

constexpr Option kMachineRows[] = {
    peer(kTpu, "tpu", kFlag, "run on TPUs"),
    peer(kTpu, "tpu_use_cluster", kFlag, "start on every worker of the TPU pod",
         {"Is it a TPU pod?", "no"})
        .spelt("tpu_cluster")
        .negated_by("no_tpu_cluster")
        .at_top(),
    peer(kTpu, "tpu_use_sudo", kFlag, "start with sudo on the workers of the pod",
         {"Start with sudo on its workers?", "no"})
        .at_top(),
    peer(kTpu, "vm", kTexts, "a worker of the pod, or several between commas; may be repeated",
         {"Names of its workers, between commas; empty: all", ""})
        .called("NAME")
        .at_top("tpu_vm"),
    peer(kTpu, "env", kTexts, "variable for the workers of the pod; may be repeated",
         {"Variables for the workers, as in A=1,B=2; empty: none", ""})
        .called("NAME=VALUE")
        .at_top("tpu_env"),
    peer(kTpu, "downcast_bf16", kFlag, "on TPUs, double becomes float, and float bfloat16",
         {"Does double become float, and float bfloat16?"})
        .at_top()
        .written_to("XLA_DOWNCAST_BF16")
        .absent(),
    file_only(kTpu, "tpu_name", kText, "name of the TPU pod",
              {"Name of the pod; empty: its workers are named below"})
        .at_top(),
    file_only(kTpu, "tpu_zone", kText, "zone of the TPU pod",
              {"Zone of the pod; empty: that of gcloud", ""})
        .at_top(),
    file_only(kTpu, "command_file", kText, "file of commands to run on the workers first",
              {"Path of the file", nullptr, nullptr, nullptr, nullptr, true})
        .at_top(),
    file_only(kTpu, "commands", kTexts, "commands to run on the workers first",
              {"Commands, between commas; empty: none", ""})
        .at_top(),
    peer(kSageMaker, "aws_access_key_id", kText,
         "name of the AWS key, for the aws program; never written to a file")
        .exchanged_by("AWS_ACCESS_KEY_ID")
        .secret(),
    peer(kSageMaker, "aws_secret_access_key", kText,
         "the AWS key, for the aws program; never written to a file")
        .exchanged_by("AWS_SECRET_ACCESS_KEY")
        .secret(),
    sagemaker("ec2_instance_type", "type of the machines",
              {"Type of the machines", "ml.p3.2xlarge"}),
    sagemaker("iam_role_name", "role of the job: its ARN, or its name, which aws is asked about",
              {"ARN or name of the job's IAM role (it must exist)",
               "accelerate_sagemaker_execution_role"}),
    sagemaker("image_uri", "container image",
              {"Its address; empty: it is added to the file later", "", nullptr, nullptr,
               "Use a container image of your own?"}),
    sagemaker("profile", "AWS profile", {"Name of the profile", "default"}),
    sagemaker("region", "AWS region", {"AWS region", "us-east-1"}).or_else("us-east-1"),
    sagemaker("base_job_name", "beginning of the job's name, before the moment of its start"),
    sagemaker("pytorch_version",
              "has no effect: image_uri names the container with all that is in it")
        .or_else("1.10.2"),
    sagemaker("transformers_version", "has no effect, as pytorch_version").or_else("4.17.0"),
    sagemaker("py_version", "has no effect, as pytorch_version").or_else("py38"),
    sagemaker("sagemaker_inputs_file", "table of input channels, with tabs and a heading",
              {"Path of the table, with tabs and a heading", nullptr, nullptr, nullptr,
               "Are the inputs in a table?", true}),
    sagemaker("sagemaker_metrics_file", "table of metrics, with tabs and a heading",
              {"Path of the table, with tabs and a heading", nullptr, nullptr, nullptr,
               "Are the metrics in a table?", true}),
    sagemaker("additional_args", "more arguments of the job"),
};

}  // namespace

absl::Span<const Option> machine_rows() { return kMachineRows; }

}  // namespace accelerate::options
