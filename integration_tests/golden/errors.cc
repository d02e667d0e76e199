#include "integration_tests/golden/errors.h"

#include <algorithm>
#include <map>
#include <regex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

constexpr char kTypes[] = "types";
constexpr char kSays[] = "says";

// LibTorch's exceptions by their names; CheckpointError and DatasetError; std::invalid_argument,
// which the functions without a Runtime throw; and the codes of an absl::Status. A wrong argument
// is a ValueError here, whatever Python calls it.
const std::map<std::string, Texts>& types_of_ours() {
  static const auto* const types = new std::map<std::string, Texts>{
      {"AssertionError", {"ValueError", "InvalidArgument"}},
      {"AttributeError", {"ValueError", "InvalidArgument"}},
      {"ComposerError", {"InvalidArgument"}},
      {"ConnectionError", {"UNAVAILABLE"}},
      {"ConstructorError", {"InvalidArgument"}},
      {"DistributedOperationException", {"DistBackendError", "ValueError"}},
      {"Exception", {"ValueError"}},
      {"FileExistsError", {"AlreadyExists"}},
      {"FileNotFoundError", {"CheckpointError", "ValueError", "NotFound"}},
      {"ImportError", {"ValueError", "InvalidArgument", "NotFound", "UNAVAILABLE"}},
      {"IndexError", {"IndexError", "ValueError"}},
      {"JSONDecodeError", {"CheckpointError", "ValueError", "invalid_argument"}},
      {"KeyError", {"ValueError", "CheckpointError"}},
      {"NotImplementedError", {"NotImplementedError", "Error"}},
      {"OSError", {"CheckpointError", "ValueError", "NotFound"}},
      {"OverflowError", {"ValueError", "InvalidArgument"}},
      {"ParserError", {"InvalidArgument"}},
      {"RuntimeError", {"Error", "ValueError", "DistBackendError", "CheckpointError"}},
      {"SafetensorError", {"CheckpointError"}},
      {"ScannerError", {"InvalidArgument"}},
      {"StopIteration", {"ValueError"}},
      {"SystemExit", {"InvalidArgument"}},
      {"TypeError", {"TypeError", "ValueError", "InvalidArgument", "CheckpointError"}},
      {"UnpicklingError", {"CheckpointError"}},
      {"ValueError",
       {"ValueError", "InvalidArgument", "invalid_argument", "UNAVAILABLE", "CheckpointError"}},
      // One of an operator, as big_modeling writes it.
      {"torch", {"Error", "ValueError", "NotImplementedError"}},
  };
  return *types;
}

// The first row whose type and phrase are the expected error's counts.
struct Row {
  const char* type;
  // A regular expression, which finds a part of HF Accelerate's message.
  const char* phrase;
  // Ours contains one of these. $1 and so on are what the groups of the phrase found.
  Texts says;
};

const std::vector<Row>& rows() {
  static const auto* const table = new std::vector<Row>{
      // Data.
      {"ValueError",
       R"(the batch size \((\d+)\) needs to be a round multiple of the number of processes )"
       R"(\((\d+)\))",
       {"the batch size $1 is not divisible by the number of data shares, $2"}},
      {"TypeError",
       "object of type '(Stream|Range)' has no len",
       {"the stream does not know its size"}},
      {"TypeError",
       "<class 'NoneType'>\\) passed to `_gpu_broadcast_one`",
       {"rank 0's loader has no batch to hand out", "a leaf of type NoneType"}},
      // Operations.
      {"TypeError", R"(object of type '\w+' has no len)", {"has no length"}},
      {"ValueError", "must have the same length", {"all members must have the same length"}},
      {"IndexError", "index -1 is out of bounds", {"nothing cannot be padded"}},
      {"TypeError",
       R"(<class '\w+'>\) passed to `_pad_across_processes`)",
       {"pad_across_processes: a leaf of type"}},
      {"TypeError", R"(^Unsupported types \(<class '(\w+)'>\) passed to `)", {"a leaf of type"}},
      {"RuntimeError", "result type Float can't be cast", {"reduce: the mean of"}},
      {"TypeError", "Can only concatenate tensors", {"concatenate: a leaf of type"}},
      // Also a name that a map of offloaded weights does not have, and a field of their index.
      {"KeyError",
       "^'shape'$",
       {"expected a value at \"/w/shape\"", "concatenate: values of different structures"}},
      {"KeyError",
       R"(^'([\w.]+)'$)",
       {"concatenate: values of different structures", "there is no offloaded weight \"$1\"",
        "'$1' is not a valid ", " no \"$1\""}},
      {"IndexError",
       "^list index out of range$",
       {"nothing cannot be padded", "has no length", "there is nothing to join",
        "has no modules in it"}},
      {"DistributedOperationException", "due to shape mismatches", {": shape Float["}},
      {"DistributedOperationException",
       "while calling `accelerate.utils.operations.pad_across_processes`",
       {"pad_across_processes: tensor 0 has "}},
      {"TypeError",
       "Can only find the batch size of tensors",
       {"there is no tensor with a batch dimension"}},
      {"ValueError",
       "^Cannot find the batch size from empty",
       {"there is no tensor with a batch dimension"}},
      {"IndexError", "^tuple index out of range$", {"there is no tensor with a batch dimension"}},
      // The environment and small helpers.
      {"ValueError", "^invalid truth value", {"is neither true nor false"}},
      {"ValueError", "`size`.* is not in a valid format", {"is not a size", "cannot be negative"}},
      {"RuntimeError",
       "^No executable batch size found, reached zero",
       {"No executable batch size found, reached zero"}},
      {"TypeError", "does not support item assignment", {"cannot be merged into"}},
      {"ValueError", "must be initialized before", {"must initialise it before it is asked"}},
      {"AttributeError",
       "'PartialState' object has no attribute",
       {"must initialise it before it is asked"}},
      // Megatron-LM.
      {"ValueError",
       R"(integration not supports (\S*) model)",
       {"no parser for models of type \"$1\""}},
      {"ValueError",
       R"(^Optimizer (\w+) is not supported by Megatron-LM)",
       {"Optimizer $1 is not supported by Megatron-LM"}},
      {"ValueError",
       "^When you do not pass the dataloader parameter",
       {"When you do not pass the dataloader parameter"}},
      {"ValueError",
       "^You must specify a training or evaluation dataloader in `accelerate.prepare\\(\\)` when "
       "using Megatron",
       {"when using Megatron-LM"}},
      {"ValueError", "custom scheduler with Megatron-LM", {"custom scheduler with Megatron-LM"}},
      {"AssertionError",
       "with multiple models when using Megatron",
       {"with multiple models when using Megatron-LM"}},
      {"AssertionError",
       "found NaN in local forward loss",
       {"found NaN in local forward loss calculation"}},
      {"TypeError", R"(unsupported operand type\(s\) for //)", {"total_num_steps"}},
      // Device maps.
      {"ValueError", "^Device (\\S+) is not recognized", {"a limit is given for \"$1\""}},
      {"ValueError",
       "^The device_map provided does not give any device for the following parameters: (.*)$",
       {"the device map gives no device for $1"}},
      {"ValueError", "^The `device_map` does not contain the module", {"device map"}},
      // Files of weights.
      {"ValueError", "Unit '([^']*)' not supported", {"Unit '$1' not supported"}},
      {"ValueError",
       "Could not parse the size value from '([^']*)'",
       {"Could not parse the size value from '$1'"}},
      {"OverflowError", "float infinity to integer", {"infinity"}},
      {"KeyError", R"(^torch\.\w+$)", {"cannot be in safetensors files"}},
      {"SafetensorError", "HeaderTooSmall", {" bytes only"}},
      {"SafetensorError", "HeaderTooLarge", {"its header is too long", "it is cut off: a header"}},
      {"SafetensorError",
       "InvalidHeaderLength",
       {"it is cut off: a header", "its header is too long"}},
      {"SafetensorError", "InvalidHeader", {"its header is"}},
      {"SafetensorError", "TensorInvalidInfo", {" should have "}},
      {"SafetensorError", R"raw(InvalidOffset\("([^"]*)"\))raw", {"'$1', at bytes"}},
      {"SafetensorError",
       "MetadataIncompleteBuffer",
       {"is cut off", "bytes after the last tensor"}},
      {"SafetensorError", "ValidationOverflow", {"overflows"}},
      // Offloaded weights, and checkpoints that are loaded by a device map.
      {"ValueError",
       R"((?:has no attribute|does not have a parameter or a buffer named) (\S+)\.$)",
       {"$1"}},
      {"ValueError", "^mmap length is greater than file", {" according to the index"}},
      {"ValueError", "is not a folder containing a `.index.json` file", {"has nothing to load"}},
      {"UnpicklingError", "", {"it is not a zip file", "pickle"}},
      {"RuntimeError", "^PytorchStreamReader failed", {"it is not a zip file"}},
      {"NotImplementedError",
       "^Cannot copy out of meta tensor",
       {"where its values are not in memory"}},
      {"RuntimeError", "must have the same dtype", {"same dtype"}},
      {"TypeError", R"(^Got unsupported ScalarType (\w+))", {"have no $1"}},
      {"JSONDecodeError", "", {"it is not JSON", "in one text JSON"}},
      {"RuntimeError",
       "^You can't move a model that has some modules offloaded",
       {"where its values are not in memory"}},
      {"FileNotFoundError", "No such file or directory: '<DIR>/off/index.json'", {"index.json"}},
      {"ValueError", "will be offloaded to disk, please pass along an", {"offload_folder"}},
      {"torch", "devices mixed$", {}},
      {"ValueError",
       "^Need either a `state_dict`, a `save_folder` or an `index`",
       {"need a state_dict, a save_folder or an index"}},
      {"FileNotFoundError", R"raw(No such file or directory: "<DIR>/([\w.]+)")raw", {"$1"}},
      {"SafetensorError",
       R"(does not contain tensor (\w+))",
       {"'$1': the file has no such tensor"}},
      {"ValueError", R"(^The checkpoint passed was saved with (\w+))", {"it was saved by $1"}},
      {"ValueError", "containing more than one `.index.json` file", {"has several indices"}},
      {"OSError", "does not contain the valid metadata", {"it was saved by"}},
      {"ValueError", R"(^(\S+) doesn't have any device set)", {"gives no device for"}},
      {"ValueError",
       "`checkpoint` should be the path to a file containing a whole state dict",
       {"cannot load a checkpoint"}},
      // Checkpoints.
      {"FileNotFoundError",
       "No such file or directory: '<ROOT>",
       {"is missing", "are prepared, but the checkpoint", "there is no complete checkpoint",
        "there is no folder"}},
      {"TypeError",
       "expected str, bytes or os.PathLike object, not NoneType",
       {"needs a folder", "needs an output_dir", "needs an input_dir"}},
      {"TypeError", "Unsupported optimizer map location", {"map_location"}},
      {"ValueError",
       "doesn't match the size of optimizer's group",
       {"doesn't match the size of optimizer's group"}},
      {"ValueError", "No input_dir provided", {"load_state needs an input_dir"}},
      {"RuntimeError", "Number of custom checkpoints", {"custom objects are in the checkpoint"}},
      // Trackers.
      {"ValueError",
       "Logging with `([^`]*)` requires a `logging_dir`",
       {"Logging with `$1` requires a `logging_dir`"}},
      {"ValueError",
       "Unsupported logging capability: ([^ ]*)\\. ",
       {"Unsupported logging capability: $1. "}},
      {"ValueError",
       R"(^(\w+) is not an available tracker)",
       {"$1 is not an available tracker stored inside the `Accelerator`"}},
      {"NotImplementedError",
       "Please define them in the class definition: (.*)$",
       {"Please define them in the class definition: $1"}},
      // Meshes.
      {"ValueError",
       R"(invalid literal for int\(\) with base 10: '([^']*)')",
       {"=\"$1\" is not a whole number"}},
      {"ValueError",
       R"(^(\w+_size) must be at least 1, but got (-?\d+))",
       {"$1 must be at least 1, but got $2"}},
      {"ValueError", R"(^(\w+_backend must be one of \['\w+'\], but got \w+))", {"$1"}},
      {"ValueError",
       R"(are mutually exclusive. (Got cp_size=\d+ and sp_size=\d+))",
       {"are mutually exclusive. $1"}},
      {"ValueError",
       R"(^(Tensor/Context parallelism .* cannot be used with pure data parallelism))",
       {"$1"}},
      {"ValueError",
       R"(^(ParallelismConfig total_size \(\d+\) does not match num_processes \(\d+\)))",
       {"$1"}},
      {"ValueError", R"(^(ParallelismConfig is only compatible .*)$)", {"$1"}},
      {"ValueError", "^(FSDP is enabled but the parallelism config has no dimension)", {"$1"}},
      {"ValueError",
       R"(^((Context|Sequence) parallelism does not support attention layers of type \[.*\] )"
       R"(\(model \w+\)))",
       {"$1"}},
      {"ValueError", R"(^(Invalid cp_comm_strategy: \w*\.))", {"$1"}},
      {"ValueError", R"(^(Invalid sp_attn_implementation: \S*\.))", {"$1"}},
      {"ValueError", "^(when `sp_seq_length_is_variable` is `False`)", {"$1"}},
      // FSDP.
      {"ValueError",
       R"(^(-?\d+ is not a valid (ShardingStrategy|BackwardPrefetch|StateDictType))$)",
       {"$1"}},
      {"ValueError", R"(^(reshard_after_forward set to .*)$)", {"$1"}},
      {"ValueError", "^(`cpu_offload` must be an instance of .*)$", {"$1"}},
      {"ValueError", "^(FSDP2 does not support LOCAL_STATE_DICT)", {"$1"}},
      {"ValueError", "^(`activation_checkpointing_offload=True` requires `[^`]*`)", {"$1"}},
      {"ValueError", "^(Invalid auto wrap policy: .*)$", {"$1"}},
      {"ValueError", "^(Could not find the transformer layer class .*)$", {"$1"}},
      {"ValueError", "^(forward_prefetch is not yet implemented in FSDP2)", {"$1"}},
      {"ValueError", "^(Invalid mixed precision: .*)$", {"$1"}},
      {"ValueError",
       R"(^Invalid mixed precision policy: .*(Must be a `dict` with keys .*)$)",
       {"$1"}},
      {"ValueError", "^(mixed_precision_policy must be an instance of .*)$", {"$1"}},
      {"FileNotFoundError", R"(^Config file (\S+) not found)", {"there is no configuration file"}},
      {"ValueError", "^If --overwrite is not set", {"--output_file PATH, or --overwrite"}},
      {"FileExistsError", "already exists and --overwrite is not set", {"is there already"}},
      {"ValueError", "^Config file is empty$", {"is empty"}},
      // Quantised weights.
      {"ValueError",
       R"(^((bnb_4bit_(quant_type|compute_dtype)|torch_dtype) must be in .*)$)",
       {"$1"}},
      {"ValueError",
       "^load_in_4bit and load_in_8(?:bit)? (can't be both (True|False))$",
       {"load_in_4bit and load_in_8bit $1"}},
      {"ValueError", "^load_in_8bit and load_in_4bit (can't be both False)$", {"$1"}},
      {"RuntimeError", "^(`weights_location` needs to be the folder path)", {"$1"}},
      {"ValueError", "^(Some modules are dispatched on the CPU or the disk)", {"$1"}},
      {"ValueError",
       "^(If passing a string for `device_map`, please choose)",
       {"$1", "it is a map, or \"auto\""}},
      {"StopIteration", "", {"the module has no parameters"}},
      // DeepSpeed.
      {"TypeError", "^stat: path should be string", {"which is not an object"}},
      {"AttributeError",
       "^'(int|str|float|bool|list)' object has no attribute 'get'$",
       {"which is not an object", "keys and values", "`distributed_type` must be"}},
      {"ValueError", "^(Expected a string path to an existing deepspeed config)", {"$1"}},
      {"ValueError", "^(Please specify the ZeRO optimization config)", {"$1"}},
      {"ValueError",
       R"(^(When using `deepspeed_config_file`, the following .* will be ignored: \[.*\]))",
       {"$1"}},
      {"ValueError", "^(`[^`]*`) not found in kwargs", {"$1"}},
      {"ValueError", "mismatch kwargs  values:\n(- ds [^=]*=[^\n]*)", {"$1"}},
      {"ValueError", "^(Can't find [^ ]* entry in the config)", {"$1"}},
      {"ValueError", "^(`--mixed_precision` arg cannot be set to `[^`]*` when `[^`]*`)", {"$1"}},
      {"NotImplementedError", "^(MS-AMP is not supported for ZeRO Stage 3)", {"$1"}},
      {"ValueError", "^(Invalid optimization level for MS-AMP)", {"$1"}},
      {"Exception", "^(Could not find a transformer layer class called '[^']*')", {"$1"}},
      {"ValueError", "must be enabled manually by calling", {"select_deepspeed_plugin"}},
      {"ValueError", "(At least one of the dataloaders passed)", {"$1"}},
      {"ValueError",
       "^(When using DeepSpeed, `accelerate.prepare\\(\\)` requires you to pass)",
       {"$1"}},
      {"ValueError", "^(You cannot (specify an?|create a) .* in the co(nfig file|de))", {"$1"}},
      {"ValueError", "^(Either specify a scheduler in the config file)", {"$1"}},
      {"ValueError", "^(You can only specify `accelerate.utils.DummyScheduler`)", {"$1"}},
      {"ValueError",
       R"(^Can(?:'t| neither) find .*entries in the DeepSpeed config file: (\[.*?\]))",
       {"$1"}},
      // The launcher.
      {"SystemExit", R"(argument --(\w+)/\S+: invalid choice)", {"--$1: expected one of"}},
      {"SystemExit",
       R"(argument --(\w+)/\S+: invalid int value: '([^']*)')",
       {"--$1: expected a whole number, not \"$2\""}},
      {"SystemExit", R"(unrecognized arguments: (\S+))", {"unknown option $1"}},
      {"SystemExit",
       R"(argument (?:-\w/)?--(\w+)\S*: expected one argument)",
       {"--$1 needs a value"}},
      {"SystemExit",
       R"(argument (?:-\w/)?--(\w+)\S*: ignored explicit argument)",
       {"--$1 takes no value"}},
      {"SystemExit", "the following arguments are required: training_script", {"no program given"}},
      {"AssertionError", "you need to specify the main process IP", {"--main_process_ip"}},
      {"AssertionError", "you need to specify the main process port", {"--main_process_port"}},
      {"ValueError", "^--no_python cannot be used with TPU launcher", {"--no_python"}},
      {"ValueError",
       "^SageMaker requires a python training script file",
       {"--module", "--no_python"}},
      {"OSError", "^You need to provide an aws_access_key_id", {"aws_access_key_id"}},
      {"ValueError",
       "--module and --no_python cannot be used together",
       {"--module and --no_python exclude each other"}},
      {"ValueError", "You can only use one of", {"exclude each other; choose one of --cpu"}},
      {"ValueError", "Less than two GPU ids", {"need at least two devices"}},
      {"ValueError", "manually pass in `--num_processes`", {"give --num_processes"}},
      {"ValueError", "A `distributed_type` must be specified", {"`distributed_type` must be"}},
      {"ValueError", R"(^'(\w+)' is not a valid DistributedType)", {"not \"$1\""}},
      {"ValueError",
       R"(^'(\w*)' is not a valid DynamoBackend)",
       {"'$1' is not a valid DynamoBackend", "unknown DynamoBackend \"$1\""}},
      {"ValueError",
       "cannot pass in both `dynamo_plugin` and `dynamo_backend`",
       {"dynamo_plugin and dynamo_backend are the same setting"}},
      {"ValueError", "^`mixed_precision` should be one of", {"mixed_precision: expected one of"}},
      {"FileNotFoundError",
       "configuration file `([^`]*)` does not exist",
       {"there is no configuration file $1"}},
      {"ParserError", "^while parsing a flow sequence", {"end of sequence flow not found"}},
      {"TypeError", R"(^int\(\) argument must be)", {"give --machine_rank"}},
      // The versions of DeepSpeed do not matter here, but its list of machines does.
      {"ValueError", "launcher requires DeepSpeed", {"need --deepspeed_hostfile"}},
      {"OSError", "mpirun or mpiexec were not found", {"neither mpirun nor mpiexec"}},
      {"AttributeError",
       "'NoneType' object has no attribute 'get'",
       {"is empty", "which is not an object"}},
  };
  return *table;
}

// What a message is about: its words in quotes, without the dashes of flags, and its numbers.
Texts facts_of(const std::string& message) {
  static const std::regex kFact(R"raw(`([^`]+)`|'([^']+)'|"([^"]+)"|\b(\d+)\b)raw");
  Texts facts;
  for (std::sregex_iterator found(message.begin(), message.end(), kFact), end; found != end;
       ++found) {
    for (size_t group = 1; group < found->size(); ++group) {
      if (!(*found)[group].matched) continue;
      const std::string fact = (*found)[group].str();
      facts.push_back(fact.substr(std::min(fact.find_first_not_of('-'), fact.size())));
    }
  }
  return facts;
}

std::string text_of(const json& error, const char* name) {
  return error.is_object() && error.contains(name) && error[name].is_string()
             ? error[name].get<std::string>()
             : "";
}

// The words that the table has for an error that was recorded; nothing for one that it does not
// know.
std::optional<Texts> words_for(const std::string& type, const std::string& message) {
  for (const Row& row : rows()) {
    std::smatch found;
    if (type != row.type || !std::regex_search(message, found, std::regex(row.phrase))) continue;
    Texts words;
    for (const std::string& text : row.says) words.push_back(found.format(text));
    return words;
  }
  return std::nullopt;
}

void add(json& list, const Texts& texts) {
  for (const std::string& text : texts) {
    if (std::find(list.begin(), list.end(), json(text)) == list.end()) list.push_back(text);
  }
}

}  // namespace

json our_error(const Texts& types, const Texts& says) {
  json error = {{"ours", true}, {kTypes, json::array()}, {kSays, json::array()}};
  add(error[kTypes], types);
  add(error[kSays], says);
  return {{"error", std::move(error)}};
}

void expect_our_error(json& out, const Texts& types, const Texts& says) {
  if (!out.contains("error")) {
    out = our_error(types, says);
  } else if (out["error"].contains(kTypes)) {
    add(out["error"][kTypes], types);
    add(out["error"][kSays], says);
  }
}

std::optional<std::string> error_difference(const json& expected, const json& got) {
  if (!got.is_object() || !got.value("ours", false)) return "the library did not report it";
  Texts types;
  Texts words;
  if (expected.contains(kTypes)) {
    types = expected[kTypes].get<Texts>();
    words = expected[kSays].get<Texts>();
  } else {
    const std::string type = text_of(expected, "type");
    const auto known = types_of_ours().find(type);
    if (known == types_of_ours().end()) return absl::StrCat("no type of ours stands for ", type);
    types = known->second;
    const std::optional<Texts> known_words = words_for(type, text_of(expected, "message"));
    words = known_words ? *known_words : facts_of(text_of(expected, "message"));
    if (!known_words && words.empty()) {
      return absl::StrCat("no words of ours are known for this ", type);
    }
  }
  const std::string type = text_of(got, "type");
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return absl::StrCat("its type is ", type.empty() ? "unknown" : type, ", not ",
                        absl::StrJoin(types, " or "));
  }
  const std::string message = text_of(got, "message");
  const bool says = std::any_of(words.begin(), words.end(), [&](const std::string& text) {
    return message.find(text) != std::string::npos;
  });
  if (words.empty() || says) return std::nullopt;
  return absl::StrCat("it does not say \"", absl::StrJoin(words, "\" or \""), "\"");
}

}  // namespace accelerate::golden
