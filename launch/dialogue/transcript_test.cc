// What a person sees of `accelerate config`, from the first question to the last one.
#include "launch/dialogue/questionnaire.h"

#include <fstream>
#include <istream>
#include <set>
#include <sstream>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/strings/substitute.h"
#include "launch/settings/schema.h"

namespace accelerate::launcher::dialogue {
namespace {

using Json = nlohmann::ordered_json;

// Questions and what is typed; of several answers to a question the first one is typed first.
using Answers = std::vector<std::pair<std::string, std::string>>;

// Types a line whenever one is read, and shows it where the screen would: behind the question.
class Person final : public std::streambuf {
 public:
  // Where `agrees`, a question that proposes no gets a yes. All others get Enter.
  Person(std::ostringstream& screen, Answers answers, bool agrees)
      : screen_(screen), answers_(std::move(answers)), agrees_(agrees) {}

  // What was never asked for.
  const Answers& left() const { return answers_; }

 protected:
  int_type underflow() override {
    const std::string answer = next_answer();
    screen_ << (answer.empty() ? "<Enter>" : answer) << "\n";
    line_ = answer + "\n";
    setg(line_.data(), line_.data(), line_.data() + line_.size());
    return traits_type::to_int_type(line_.front());
  }

 private:
  std::string next_answer() {
    const std::vector<std::string> lines = absl::StrSplit(screen_.str(), '\n');
    std::string question(absl::StripSuffix(lines.back(), ": "));
    const bool proposes_no = absl::EndsWith(question, " [no]");
    if (absl::EndsWith(question, "]")) question.resize(question.rfind(" ["));
    const bool is_choice = question == "Number or name";
    if (is_choice) {
      auto line = lines.rbegin() + 1;
      while (absl::StartsWith(*line, "  ")) ++line;
      question = *line;
    }
    const auto found =
        absl::c_find_if(answers_, [&](const auto& each) { return each.first == question; });
    if (found == answers_.end()) return agrees_ && proposes_no && !is_choice ? "yes" : "";
    const std::string answer = found->second;
    answers_.erase(found);
    return answer;
  }

  std::ostringstream& screen_;
  Answers answers_;
  const bool agrees_;
  std::string line_;
};

struct Dialogue {
  std::string transcript;
  Json file;
};

Dialogue dialogue_of(Answers answers, bool agrees, Works works) {
  const std::string home = testing::TempDir();
  std::ofstream(home + "/zero.json") << "{}";
  std::ostringstream screen;
  Person person(screen, std::move(answers), agrees);
  std::istream in(&person);
  Prompter prompter(in, screen, false);
  settings::ConfigFile config;
  const absl::Status asked = ask_configuration(prompter, {.home = home}, config, works);
  EXPECT_TRUE(asked.ok()) << asked << screen.str();
  EXPECT_TRUE(person.left().empty()) << person.left().front().first << "\n" << screen.str();
  // A menu gets to the line of its question, and a refusal to that of the answer.
  return {absl::StrReplaceAll(screen.str(), {{"\n  ", " / "}, {"\nNumber or name", ""}}),
          config.values};
}

constexpr char kPlaces[] =
    "Where do you train? / 0  this machine / 1  AWS SageMaker [this machine]: ";
constexpr char kKinds[] =
    "Which kind of machine do you use? / 0  no distributed training / 1  multi-CPU / 2  multi-XPU "
    "(never tried on hardware) / 3  multi-HPU (never tried on hardware) / 4  multi-GPU / 5  "
    "multi-NPU (never tried on hardware) / 6  multi-MLU (never tried on hardware) / 7  multi-SDAA "
    "(never tried on hardware) / 8  multi-MUSA (never tried on hardware) / 9  TPU (never tried on "
    "hardware) / 10  Neuron (never tried on hardware) / 11  simulated cluster [no distributed "
    "training]: ";
constexpr char kKindQuestion[] = "Which kind of machine do you use?";
constexpr char kSageMaker[] = "AWS SageMaker";

// How a dialogue begins that leads to a kind of machine, or to SageMaker.
std::string beginning(const std::string& kind) {
  if (kind == kSageMaker) return absl::StrCat(kPlaces, kind, "\n");
  return absl::StrCat(kPlaces, "<Enter>\n", kKinds, kind, "\n");
}

Answers with_kind(const std::string& kind, Answers answers) {
  answers.emplace_back(kind == kSageMaker ? "Where do you train?" : kKindQuestion, kind);
  return answers;
}

struct Path {
  const char* kind;
  Answers answers;
  const char* transcript;
};

// Through all engines, with yes where no is proposed, as all settings worked.
const std::vector<Path>& paths() {
  static const std::vector<Path> kPaths = {
      // A compiled model in 8 bits with Transformer Engine.
      {"no distributed training",
       {{"Use DeepSpeed's ZeRO?", "no"},
        {"Data type of the computation?", "fp8"},
        {"Steps between two scaling factors?", "0"},
        {"Steps between two scaling factors?", "2"}},
       "Train on the CPU even where there is a device? [yes]: <Enter>\n"
       "Compile the model (torch.compile)? [no]: yes\n"
       "Which compiler? / 0  eager / 1  aot_eager / 2  inductor [inductor]: <Enter>\n"
       "Change what it does by default? [no]: yes\n"
       "What should it optimise for? / 0  default / 1  reduce-overhead / 2  max-autotune / 3  "
       "max-autotune-no-cudagraphs [default]: <Enter>\n"
       "Must the model compile into one graph? [no]: yes\n"
       "Do sizes change from step to step? [no]: yes\n"
       "Compile repeated blocks once? [no]: yes\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: fp8\n"
       "Which library for 8 bits? / 0  ao / 1  te / 2  msamp [te]: <Enter>\n"
       "Change what it does by default? [no]: yes\n"
       "8 bits in evaluation too? [no]: yes\n"
       "Margin of the scaling factor? [0]: <Enter>\n"
       "Steps between two scaling factors? [1]: 0 / expected a whole number of at least 1, not "
       "\"0\"\n"
       "Steps between two scaling factors? [1]: 2\n"
       "Which number format? / 0  HYBRID / 1  E4M3 / 2  E5M2 [HYBRID]: <Enter>\n"
       "Steps that are looked back at? [1024]: <Enter>\n"
       "How does a scaling factor follow from them? / 0  max / 1  most_recent [most_recent]: "
       "<Enter>\n"
       "Higher precision in some linear layers' products? [no]: yes\n"
       "In forward? [no]: yes\n"
       "In the input's gradient? [no]: yes\n"
       "In the weight's gradient? [no]: yes\n"},
      // 8 bits with torchao.
      {"multi-CPU",
       {{"Compile the model (torch.compile)?", "no"},
        {"Data type of the computation?", "fp8"},
        {"Which library for 8 bits?", "ao"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Start the ranks with mpirun? [no]: yes\n"
       "File of the machines [~/hostfile]: <Enter>\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "How many ranks over all machines? [1]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: fp8\n"
       "Which library for 8 bits? / 0  ao / 1  te / 2  msamp [te]: ao\n"
       "Gather shards in 8 bits? [yes]: <Enter>\n"
       "Pad matrices to sizes that the kernels take? [yes]: <Enter>\n"},
      // 8 bits with MS-AMP.
      {"Neuron (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"},
        {"Data type of the computation?", "fp8"},
        {"Which library for 8 bits?", "msamp"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "How many Neuron cores over all machines? [2]: <Enter>\n"
       "Which Neuron cores, as in 0,2 [all]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: fp8\n"
       "Which library for 8 bits? / 0  ao / 1  te / 2  msamp [te]: msamp\n"
       "Which parts are in 8 bits? / 0  O1 / 1  O2 [O2]: <Enter>\n"},
      // DeepSpeed with a JSON file.
      {"multi-XPU (never tried on hardware)",
       {{"How many machines?", "2"},
        {"Compile the model (torch.compile)?", "no"},
        {"Path of the JSON file", "~/none.json"},
        {"Path of the JSON file", "~/zero.json"},
        {"Class names of these layers, between commas", "Experts"},
        {"Which, as in host1@host2:0,2", "h1"}},
       "How many machines? [1]: 2\n"
       "Rank of this machine [0]: <Enter>\n"
       "Name or address of the machine with rank 0 [localhost]: <Enter>\n"
       "Port of the machine with rank 0 [29500]: <Enter>\n"
       "Are all machines in the same local network? [yes]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: yes\n"
       "Do you have a JSON file for DeepSpeed? [no]: yes\n"
       "Path of the JSON file: ~/none.json / there is no file ~/none.json\n"
       "Path of the JSON file: ~/zero.json\n"
       "Make models sharded (zero.Init)? For stage 3, no effect [no]: yes\n"
       "Has the model layers of experts (MoE)? [no]: yes\n"
       "Class names of these layers, between commas: Experts\n"
       "Which program starts the other machines? / 0  pdsh / 1  standard / 2  openmpi / 3  mvapich "
       "/ 4  mpich / 5  nossh / 6  slurm [pdsh]: <Enter>\n"
       "File of the machines and their slots [/job/hostfile]: <Enter>\n"
       "Leave some of them out? [no]: yes\n"
       "Which, as in host1@host2:0,2: h1\n"
       "How many XPUs over all machines? [2]: <Enter>\n"},
      // DeepSpeed's stage 3.
      {"multi-GPU",
       {{"How many machines?", "2"},
        {"Rank of this machine", "1"},
        {"Name or address of the machine with rank 0", "head"},
        {"Are all machines in the same local network?", "no"},
        {"Which rendezvous do the machines use?", "c10d"},
        {"Compile the model (torch.compile)?", "no"},
        {"Do you have a JSON file for DeepSpeed?", "no"},
        {"Which stage of ZeRO?", "3"},
        {"Where are the optimizer kept?", "nvme"},
        {"Where are the parameters kept?", "nvme"},
        {"Has the model layers of experts (MoE)?", "no"},
        {"Leave some of them out?", "no"},
        {"Which, as in host1@host2:0,2", "h1:0"}},
       "How many machines? [1]: 2\n"
       "Rank of this machine [0]: 1\n"
       "Name or address of the machine with rank 0: head\n"
       "Port of the machine with rank 0 [29500]: <Enter>\n"
       "Are all machines in the same local network? [yes]: no\n"
       "Which rendezvous do the machines use? / 0  static / 1  c10d [static]: c10d\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: yes\n"
       "Do you have a JSON file for DeepSpeed? [no]: no\n"
       "Which stage of ZeRO? / 0 / 1 / 2 / 3 [2]: 3\n"
       "Where are the optimizer kept? / 0  none / 1  cpu / 2  nvme [none]: nvme\n"
       "Folder on NVMe for the optimizer [/nvme]: <Enter>\n"
       "Where are the parameters kept? / 0  none / 1  cpu / 2  nvme [none]: nvme\n"
       "Folder on NVMe for the parameters [/nvme]: <Enter>\n"
       "Micro-batches of a step? [1]: <Enter>\n"
       "Clip gradients? [no]: yes\n"
       "Largest norm [1.0]: <Enter>\n"
       "Save whole 16-bit weights? [no]: yes\n"
       "Make models sharded (zero.Init)? For stage 3, no effect [no]: yes\n"
       "Has the model layers of experts (MoE)? [no]: no\n"
       "Which program starts the other machines? / 0  pdsh / 1  standard / 2  openmpi / 3  mvapich "
       "/ 4  mpich / 5  nossh / 6  slurm [pdsh]: <Enter>\n"
       "File of the machines and their slots [/job/hostfile]: <Enter>\n"
       "Leave some of them out? [no]: no\n"
       "Use only some of them? [no]: yes\n"
       "Which, as in host1@host2:0,2: h1:0\n"
       "How many GPUs over all machines? [2]: <Enter>\n"
       "Bind each rank to the cores near its device? [no]: yes\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // Version 1 of FSDP.
      {"multi-HPU (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"},
        {"Use DeepSpeed's ZeRO?", "no"},
        {"Which version of FSDP?", "1"},
        {"The layers that the model says are never divided?", "no"},
        {"Class names of the layers, between commas", "Block"},
        {"Does only rank 0 read the weights?", "no"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Use Fully Sharded Data Parallel (FSDP)? [no]: yes\n"
       "Which version of FSDP? / 1 / 2 [2]: 1\n"
       "What is sharded? / 0  FULL_SHARD / 1  SHARD_GRAD_OP / 2  NO_SHARD / 3  HYBRID_SHARD / 4  "
       "HYBRID_SHARD_ZERO2 [FULL_SHARD]: <Enter>\n"
       "Keep shards on the host? [no]: yes\n"
       "Which modules are sharded by themselves? / 0  TRANSFORMER_BASED_WRAP / 1  SIZE_BASED_WRAP "
       "/ 2  NO_WRAP [TRANSFORMER_BASED_WRAP]: <Enter>\n"
       "The layers that the model says are never divided? [yes]: no\n"
       "Class names of the layers, between commas: Block\n"
       "When are the next shards fetched in backward? / 0  BACKWARD_PRE / 1  BACKWARD_POST / 2  "
       "NO_PREFETCH [BACKWARD_PRE]: <Enter>\n"
       "How are checkpoints written? / 0  FULL_STATE_DICT / 1  LOCAL_STATE_DICT / 2  "
       "SHARDED_STATE_DICT [FULL_STATE_DICT]: <Enter>\n"
       "Fetch the next shards in forward as well? No effect [no]: yes\n"
       "Show the original parameters? [yes]: <Enter>\n"
       "Does only rank 0 read the weights? [yes]: no\n"
       "Take the weights of rank 0? No effect [yes]: <Enter>\n"
       "Recompute activations in backward? [no]: yes\n"
       "How many HPUs over all machines? [1]: <Enter>\n"
       "Which HPUs, as in 0,2 [all]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // Version 2 of FSDP in a mesh.
      {"multi-NPU (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"},
        {"Use DeepSpeed's ZeRO?", "no"},
        {"Which modules are sharded by themselves?", "SIZE_BASED_WRAP"},
        {"Context parallel ranks?", "2"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Use Fully Sharded Data Parallel (FSDP)? [no]: yes\n"
       "Which version of FSDP? / 1 / 2 [2]: <Enter>\n"
       "Free parameters after the forward pass? [yes]: <Enter>\n"
       "Keep shards on the host? [no]: yes\n"
       "Which modules are sharded by themselves? / 0  TRANSFORMER_BASED_WRAP / 1  SIZE_BASED_WRAP "
       "/ 2  NO_WRAP [TRANSFORMER_BASED_WRAP]: SIZE_BASED_WRAP\n"
       "Parameters of the smallest such module? [100000000]: <Enter>\n"
       "How are checkpoints written? / 0  FULL_STATE_DICT / 1  SHARDED_STATE_DICT "
       "[FULL_STATE_DICT]: <Enter>\n"
       "Does only rank 0 read the weights? [yes]: <Enter>\n"
       "Recompute activations in backward? [no]: yes\n"
       "Arrange the ranks in a mesh (parallelism config)? [no]: yes\n"
       "Data parallel replicas? [1]: <Enter>\n"
       "Ranks that share a replica by shards? [2]: <Enter>\n"
       "Tensor parallel ranks? [1]: <Enter>\n"
       "Context parallel ranks? [1]: 2\n"
       "How do they exchange? / 0  allgather / 1  alltoall [allgather]: <Enter>\n"
       "How many NPUs over all machines? [4]: <Enter>\n"
       "Which NPUs, as in 0,2 [all]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // The same with ranks that divide sequences by Ulysses.
      {"multi-NPU (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"},
        {"Use DeepSpeed's ZeRO?", "no"},
        {"Which modules are sharded by themselves?", "SIZE_BASED_WRAP"},
        {"Sequence parallel ranks?", "2"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Use Fully Sharded Data Parallel (FSDP)? [no]: yes\n"
       "Which version of FSDP? / 1 / 2 [2]: <Enter>\n"
       "Free parameters after the forward pass? [yes]: <Enter>\n"
       "Keep shards on the host? [no]: yes\n"
       "Which modules are sharded by themselves? / 0  TRANSFORMER_BASED_WRAP / 1  SIZE_BASED_WRAP "
       "/ 2  NO_WRAP [TRANSFORMER_BASED_WRAP]: SIZE_BASED_WRAP\n"
       "Parameters of the smallest such module? [100000000]: <Enter>\n"
       "How are checkpoints written? / 0  FULL_STATE_DICT / 1  SHARDED_STATE_DICT "
       "[FULL_STATE_DICT]: <Enter>\n"
       "Does only rank 0 read the weights? [yes]: <Enter>\n"
       "Recompute activations in backward? [no]: yes\n"
       "Arrange the ranks in a mesh (parallelism config)? [no]: yes\n"
       "Data parallel replicas? [1]: <Enter>\n"
       "Ranks that share a replica by shards? [2]: <Enter>\n"
       "Tensor parallel ranks? [1]: <Enter>\n"
       "Context parallel ranks? [1]: <Enter>\n"
       "Sequence parallel ranks? [1]: 2\n"
       "How many NPUs over all machines? [4]: <Enter>\n"
       "Which NPUs, as in 0,2 [all]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // Megatron-LM.
      {"multi-GPU",
       {{"Compile the model (torch.compile)?", "no"},
        {"Use DeepSpeed's ZeRO?", "no"},
        {"Use Fully Sharded Data Parallel (FSDP)?", "no"},
        {"Tensor parallel ranks?", "0"},
        {"Tensor parallel ranks?", "2"},
        {"Pipeline stages?", "0"},
        {"Pipeline stages?", "2"}},
       "How many machines? [1]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Use Fully Sharded Data Parallel (FSDP)? [no]: no\n"
       "Use Megatron-LM's parallelism? [no]: yes\n"
       "Tensor parallel ranks? [1]: 0 / expected a whole number of at least 1, not \"0\"\n"
       "Tensor parallel ranks? [1]: 2\n"
       "Shard activations over them? [yes]: <Enter>\n"
       "Pipeline stages? [1]: 0 / expected a whole number of at least 1, not \"0\"\n"
       "Pipeline stages? [1]: 2\n"
       "Micro-batches of a step? [1]: <Enter>\n"
       "Recompute activations selectively? [yes]: <Enter>\n"
       "Shard the optimizer? [yes]: <Enter>\n"
       "Largest norm of the gradients; 0: any [1.0]: <Enter>\n"
       "How many GPUs over all machines? [4]: <Enter>\n"
       "Which GPUs, as in 0,2 [all]: <Enter>\n"
       "Bind each rank to the cores near its device? [no]: yes\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // A TPU pod.
      {"TPU (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"},
        {"Are they in a file?", "no"},
        {"Data type of the computation?", "bf16"},
        {"Name of the pod; empty: its workers are named below", "pod"},
        {"Zone of the pod; empty: that of gcloud", "zone"},
        {"Commands, between commas; empty: none", "a,b"},
        {"Names of its workers, between commas; empty: all", "w1,w2"},
        {"Variables for the workers, as in A=1,B=2; empty: none", "A=1"}},
       "Compile the model (torch.compile)? [no]: no\n"
       "How many TPU cores over all machines? [1]: <Enter>\n"
       "Function that is called on each core [main]: <Enter>\n"
       "Is it a TPU pod? [no]: yes\n"
       "Name of the pod; empty: its workers are named below: pod\n"
       "Zone of the pod; empty: that of gcloud: zone\n"
       "Start with sudo on its workers? [no]: yes\n"
       "Run commands on the workers first? [no]: yes\n"
       "Are they in a file? [no]: no\n"
       "Commands, between commas; empty: none: a,b\n"
       "Names of its workers, between commas; empty: all: w1,w2\n"
       "Variables for the workers, as in A=1,B=2; empty: none: A=1\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: bf16\n"
       "Does double become float, and float bfloat16? [no]: yes\n"},
      // A TPU pod with a file of commands.
      {"TPU (never tried on hardware)",
       {{"Compile the model (torch.compile)?", "no"}, {"Path of the file", "~/commands"}},
       "Compile the model (torch.compile)? [no]: no\n"
       "How many TPU cores over all machines? [1]: <Enter>\n"
       "Function that is called on each core [main]: <Enter>\n"
       "Is it a TPU pod? [no]: yes\n"
       "Name of the pod; empty: its workers are named below: <Enter>\n"
       "Zone of the pod; empty: that of gcloud: <Enter>\n"
       "Start with sudo on its workers? [no]: yes\n"
       "Run commands on the workers first? [no]: yes\n"
       "Are they in a file? [no]: yes\n"
       "Path of the file: ~/commands\n"
       "Names of its workers, between commas; empty: all: <Enter>\n"
       "Variables for the workers, as in A=1,B=2; empty: none: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // SageMaker.
      {kSageMaker,
       {{"Compile the model (torch.compile)?", "no"},
        {"Path of the table, with tabs and a heading", "inputs"},
        {"Path of the table, with tabs and a heading", "metrics"},
        {"Its address; empty: it is added to the file later", "image"}},
       "How does the job get its credentials? / 0  an AWS profile / 1  AWS_ACCESS_KEY_ID and "
       "AWS_SECRET_ACCESS_KEY [an AWS profile]: <Enter>\n"
       "Name of the profile [default]: <Enter>\n"
       "AWS region [us-east-1]: <Enter>\n"
       "ARN or name of the job's IAM role (it must exist) [accelerate_sagemaker_execution_role]: "
       "<Enter>\n"
       "Use a container image of your own? [no]: yes\n"
       "Its address; empty: it is added to the file later: image\n"
       "Are the inputs in a table? [no]: yes\n"
       "Path of the table, with tabs and a heading: inputs\n"
       "Are the metrics in a table? [no]: yes\n"
       "Path of the table, with tabs and a heading: metrics\n"
       "Which distributed mode? / 0  NO / 1  DATA_PARALLEL [NO]: <Enter>\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Type of the machines [ml.p3.2xlarge]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "How many machines? [1]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // SageMaker with several machines.
      {kSageMaker,
       {{"How does the job get its credentials?", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"},
        {"Use a container image of your own?", "no"},
        {"Are the inputs in a table?", "no"},
        {"Are the metrics in a table?", "no"},
        {"Which distributed mode?", "DATA_PARALLEL"},
        {"Compile the model (torch.compile)?", "no"}},
       "How does the job get its credentials? / 0  an AWS profile / 1  AWS_ACCESS_KEY_ID and "
       "AWS_SECRET_ACCESS_KEY [an AWS profile]: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY\n"
       "AWS region [us-east-1]: <Enter>\n"
       "ARN or name of the job's IAM role (it must exist) [accelerate_sagemaker_execution_role]: "
       "<Enter>\n"
       "Use a container image of your own? [no]: no\n"
       "Are the inputs in a table? [no]: no\n"
       "Are the metrics in a table? [no]: no\n"
       "Which distributed mode? / 0  NO / 1  DATA_PARALLEL [NO]: DATA_PARALLEL\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Type of the machines? / 0  ml.p3.16xlarge / 1  ml.p3dn.24xlarge / 2  ml.p4dn.24xlarge "
       "[ml.p3.16xlarge]: <Enter>\n"
       "Compare collectives between ranks before they run? It costs time [no]: yes\n"
       "How many machines? [1]: <Enter>\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
      // A simulated cluster.
      {"simulated cluster",
       {{"Compile the model (torch.compile)?", "no"},
        {"Use DeepSpeed's ZeRO?", "no"},
        {"Use Fully Sharded Data Parallel (FSDP)?", "no"}},
       "Which cluster: nodes x devices, and their kind after a colon [2x4]: <Enter>\n"
       "Compile the model (torch.compile)? [no]: no\n"
       "Use DeepSpeed's ZeRO? [no]: no\n"
       "Use Fully Sharded Data Parallel (FSDP)? [no]: no\n"
       "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"},
  };
  return kPaths;
}

Dialogue dialogue_on(const Path& path) {
  return dialogue_of(with_kind(path.kind, path.answers), true,
                     [](const settings::Setting&) { return true; });
}

TEST(Transcript, OfEachEngineHasItsQuestionsProposalsAndChoices) {
  for (const Path& path : paths()) {
    EXPECT_EQ(dialogue_on(path).transcript, beginning(path.kind) + path.transcript);
  }
}

// The question of a row, as the first line that shows it begins.
std::string question_of(const settings::Setting& row) {
  std::string text = row.question.text;
  if (text == "?") {
    text = absl::StrCat(row.help, "?");
    text[0] = absl::ascii_toupper(text[0]);
  }
  if (row.type != settings::ValueType::kBools) return text;
  const std::vector<std::string> parts = absl::StrSplit(row.question.choices, '|');
  return absl::StrCat(text, parts.front(), "?");
}

bool has_line(const std::string& transcript, const std::string& question) {
  const std::vector<std::string> lines = absl::StrSplit(transcript, '\n');
  return absl::c_any_of(lines, [&](const std::string& line) {
    return absl::c_any_of(std::vector{": ", " [", " / "}, [&](const char* next) {
      return absl::StartsWith(line, question + next);
    });
  });
}

// Whether the answer is where the row's key stands; rows without key have none.
bool has_answer(const Json& file, const settings::Setting& row) {
  if (!row.has_key()) return true;
  const settings::SectionName* section = settings::find_section(row.section);
  const Json map = section == nullptr ? file : file.value(section->key, Json::object());
  return map.contains(row.key_name());
}

TEST(Transcript, HasTheQuestionOfEachRowOnSomePath) {
  std::set<std::string> asked;
  for (const Path& path : paths()) {
    const Dialogue dialogue = dialogue_on(path);
    for (const settings::Setting& row : settings::all_settings()) {
      if (row.question.text == nullptr || !has_answer(dialogue.file, row)) continue;
      if (has_line(dialogue.transcript, question_of(row))) asked.insert(row.name);
    }
  }
  std::set<std::string> with_question;
  for (const settings::Setting& row : settings::all_settings()) {
    if (row.question.text != nullptr) with_question.insert(row.name);
  }
  EXPECT_EQ(asked, with_question);
}

// What follows when each proposal is taken; `$0` stands for what the devices are called.
struct Kind {
  const char* title;
  const char* devices;
  const char* transcript;
};

constexpr char kDevices[] =
    "How many machines? [1]: <Enter>\n"
    "Compare collectives between ranks before they run? It costs time [no]: <Enter>\n"
    "Compile the model (torch.compile)? [no]: <Enter>\n"
    "Use DeepSpeed's ZeRO? [no]: <Enter>\n"
    "Use Fully Sharded Data Parallel (FSDP)? [no]: <Enter>\n"
    "How many $0 over all machines? [2]: <Enter>\n"
    "Which $0, as in 0,2 [all]: <Enter>\n";

constexpr Kind kAll[] = {
    {"no distributed training", "",
     "Train on the CPU even where there is a device? [yes]: <Enter>\n"
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "Use DeepSpeed's ZeRO? [no]: <Enter>\n"},
    {"multi-CPU", "",
     "How many machines? [1]: <Enter>\n"
     "Compare collectives between ranks before they run? It costs time [no]: <Enter>\n"
     "Start the ranks with mpirun? [no]: <Enter>\n"
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "How many ranks over all machines? [1]: <Enter>\n"},
    {"multi-XPU (never tried on hardware)", "XPUs", kDevices},
    {"multi-HPU (never tried on hardware)", "HPUs", kDevices},
    {"multi-GPU", "",
     "How many machines? [1]: <Enter>\n"
     "Compare collectives between ranks before they run? It costs time [no]: <Enter>\n"
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "Use DeepSpeed's ZeRO? [no]: <Enter>\n"
     "Use Fully Sharded Data Parallel (FSDP)? [no]: <Enter>\n"
     "Use Megatron-LM's parallelism? [no]: <Enter>\n"
     "How many GPUs over all machines? [2]: <Enter>\n"
     "Which GPUs, as in 0,2 [all]: <Enter>\n"
     "Bind each rank to the cores near its device? [no]: <Enter>\n"},
    {"multi-NPU (never tried on hardware)", "NPUs", kDevices},
    {"multi-MLU (never tried on hardware)", "MLUs", kDevices},
    {"multi-SDAA (never tried on hardware)", "SDAAs", kDevices},
    {"multi-MUSA (never tried on hardware)", "MUSAs", kDevices},
    {"TPU (never tried on hardware)", "",
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "How many TPU cores over all machines? [1]: <Enter>\n"
     "Function that is called on each core [main]: <Enter>\n"
     "Is it a TPU pod? [no]: <Enter>\n"},
    {"Neuron (never tried on hardware)", "",
     "How many machines? [1]: <Enter>\n"
     "Compare collectives between ranks before they run? It costs time [no]: <Enter>\n"
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "How many Neuron cores over all machines? [2]: <Enter>\n"
     "Which Neuron cores, as in 0,2 [all]: <Enter>\n"},
    {"simulated cluster", "",
     "Which cluster: nodes x devices, and their kind after a colon [2x4]: <Enter>\n"
     "Compile the model (torch.compile)? [no]: <Enter>\n"
     "Use DeepSpeed's ZeRO? [no]: <Enter>\n"
     "Use Fully Sharded Data Parallel (FSDP)? [no]: <Enter>\n"},
};

TEST(Transcript, OfEachKindOfMachineHasTheQuestionsOfThisVersion) {
  for (const Kind& kind : kAll) {
    const Dialogue dialogue = dialogue_of(with_kind(kind.title, {}), false, &works_in_this_version);
    EXPECT_EQ(
        dialogue.transcript,
        absl::StrCat(
            beginning(kind.title), absl::Substitute(kind.transcript, kind.devices),
            "Data type of the computation? / 0  no / 1  fp16 / 2  bf16 / 3  fp8 [no]: <Enter>\n"));
  }
}

}  // namespace
}  // namespace accelerate::launcher::dialogue
