// `accelerate estimate-memory MODEL`: the memory that a model needs to load and to train.
//
// MODEL is what launch/estimate/architecture.h reads. Nothing is loaded, and nothing downloaded.
// Mirrors: accelerate commands/estimate.py.
// Differs: see architecture.h.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/base/status.h"
#include "accelerate/device_map/infer.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/estimate/architecture.h"
#include "launch/estimate/parts.h"

namespace accelerate::launcher::commands {

using estimate::Architecture;
using estimate::estimate_dtypes;
using estimate::ModelSize;
using estimate::size_in;
using estimate::TransformerShape;
namespace {

// Code points; none of what is printed here is wide or combined.
size_t length_of(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

std::string centred(const std::string& text, size_t width) {
  const size_t length = length_of(text);
  const size_t blanks = width > length ? width - length : 0;
  const size_t left = blanks / 2 + (blanks & width & 1);
  return absl::StrCat(std::string(left, ' '), text, std::string(blanks - left, ' '));
}

// A table in a box, with a title, for terminals.
//
//     ┌───────────────┐
//     │     title     │
//     ├───────┬───────┤
//     │ left  │ right │
//     ├───────┼───────┤
//     │   1   │   2   │
//     └───────┴───────┘
//
// Every row has as many cells as there are headers, at least one. Texts are UTF-8 and centred; an
// odd blank goes where Python's str.center puts it. The last line has no newline. Mirrors:
// accelerate commands/estimate.py, create_ascii_table.
std::string text_table(const std::vector<std::string>& headers,
                       const std::vector<std::vector<std::string>>& rows,
                       const std::string& title) {
  std::vector<size_t> widths;
  for (size_t column = 0; column < headers.size(); ++column) {
    size_t width = length_of(headers[column]);
    for (const auto& row : rows) width = std::max(width, length_of(row[column]));
    widths.push_back(width);
  }
  size_t inner = std::accumulate(widths.begin(), widths.end(), widths.size() - 1);
  if (const size_t needed = length_of(title); needed > inner) {
    widths.back() += needed - inner;
    inner = needed;
  }
  const auto rule = [&](const char* left, const char* between, const char* right) {
    std::vector<std::string> lines;
    for (const size_t width : widths)
      lines.push_back(absl::StrJoin(std::vector<const char*>(width, "─"), ""));
    return absl::StrCat(left, absl::StrJoin(lines, between), right);
  };
  const auto line = [&](const std::vector<std::string>& cells) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < cells.size(); ++i) texts.push_back(centred(cells[i], widths[i]));
    return absl::StrCat("│", absl::StrJoin(texts, "│"), "│");
  };
  std::vector<std::string> lines = {rule("┌", "─", "┐"),
                                    absl::StrCat("│", centred(title, inner), "│"),
                                    rule("├", "┬", "┤"), line(headers), rule("├", "┼", "┤")};
  for (const auto& row : rows) lines.push_back(line(row));
  lines.push_back(rule("└", "┴", "┘"));
  return absl::StrJoin(lines, "\n");
}

constexpr char kName[] = "estimate-memory";

struct Options {
  std::string model_name;
  std::string library_name;
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  bool trust_remote_code = false;
  int64_t dp_shard_size = 1;
  int64_t tp_size = 1;
  int64_t ep_size = 1;
  int64_t cp_size = 1;
  int64_t sp_size = 1;
  int64_t pp_size = 1;
  std::string tp_plan;
  bool sequence_parallel = false;
  std::optional<int> zero_stage;
  int64_t batch_size = 0;
  int64_t sequence_length = 0;
  std::string attn_implementation = "sdpa";
  bool activation_checkpointing = false;
  TransformerShape transformer;
  std::string max_memory;
};

// How many ranks divide the rows of states: those with shares of the data, and with parts of each
// sequence.
int64_t shards_of(const Options& options) {
  return options.dp_shard_size * options.cp_size * options.sp_size;
}

// What else divides the model and its sequences, and on how many ranks: ", TP 2 on 8".
std::string rest_of_header(const Options& options) {
  std::string text;
  for (const auto& [name, size] :
       {std::pair("TP", options.tp_size), std::pair("PP", options.pp_size),
        std::pair("CP", options.cp_size), std::pair("SP", options.sp_size)}) {
    if (size > 1) absl::StrAppend(&text, ", ", name, " ", size);
  }
  return absl::StrCat(text, " on ", shards_of(options) * options.tp_size * options.pp_size);
}

// A column: what is above it, and its text for a dtype.
struct Column {
  std::string header;
  std::function<std::optional<double>(const std::string& dtype)> bytes;
};

// `size` is that of a rank's part along tp and pp.
std::vector<Column> training_columns(const Options& options, const ModelSize& size) {
  std::vector<Column> columns;
  const auto add = [&](std::string header, const estimate::Division& division) {
    columns.push_back({std::move(header), [size, division](const std::string& dtype) {
                         return estimate::divided_training(dtype, size, division);
                       }});
  };
  if (options.tp_size * options.pp_size > 1) {
    add(absl::StrCat("Adam", options.tp_size > 1 ? absl::StrCat(", TP ", options.tp_size) : "",
                     options.pp_size > 1 ? absl::StrCat(", PP ", options.pp_size) : ""),
        {});
  }
  if (shards_of(options) > 1) {
    for (const int stage : {1, 2, 3}) {
      if (options.zero_stage && stage != *options.zero_stage) continue;
      add(absl::StrCat("ZeRO-", stage, stage == 3 ? "/FSDP" : "", rest_of_header(options)),
          {.dp_shard_size = shards_of(options), .zero_stage = stage});
    }
  }
  return columns;
}

// FSDP's, but for the experts, of which a rank along ep has its part whole.
Column experts_column(const Options& options, const estimate::EpPart& part) {
  const estimate::Division shards = {.dp_shard_size = shards_of(options), .zero_stage = 3};
  return {absl::StrCat("FSDP, EP ", options.ep_size, rest_of_header(options)),
          [rest = estimate::model_size(part.rest), experts = ModelSize{.total = part.experts},
           shards](const std::string& dtype) {
            std::optional<double> bytes = estimate::divided_training(dtype, rest, shards);
            if (bytes) *bytes += *estimate::divided_training(dtype, experts, {});
            return bytes;
          }};
}

// Those of a rank whose part of the model this is.
std::vector<Column> columns_of(const Options& options, const Architecture& part) {
  if (options.ep_size == 1) return training_columns(options, estimate::model_size(part));
  // A stage may have no experts.
  return {experts_column(
      options, estimate::ep_part(part, options.ep_size).value_or(estimate::EpPart{.rest = part}))};
}

// The most of any stage.
std::vector<Column> largest_of(const std::vector<std::vector<Column>>& by_stage) {
  std::vector<Column> columns;
  for (size_t i = 0; i < by_stage.front().size(); ++i) {
    columns.push_back({by_stage.front()[i].header, [by_stage, i](const std::string& dtype) {
                         std::optional<double> most;
                         for (const std::vector<Column>& stage : by_stage) {
                           most = std::max(most, stage[i].bytes(dtype));
                         }
                         return most;
                       }});
  }
  return columns;
}

absl::StatusOr<std::optional<Column>> activation_column(const Options& options,
                                                        const TransformerShape& shape) {
  if (options.batch_size == 0 && options.sequence_length == 0) return std::nullopt;
  if (options.batch_size == 0 || options.sequence_length == 0) {
    return absl::InvalidArgumentError("activations need both --batch_size and --sequence_length");
  }
  std::string missing;
  for (const auto& [name, value] : {std::pair("hidden_size", shape.hidden_size),
                                    std::pair("num_hidden_layers", shape.num_hidden_layers),
                                    std::pair("num_attention_heads", shape.num_attention_heads)}) {
    if (value == 0) absl::StrAppend(&missing, " --", name);
  }
  if (!missing.empty()) {
    return invalid("activations depend on what ", options.model_name, " does not say; give",
                   missing);
  }
  const estimate::ActivationOptions activations = {
      .batch_size = options.batch_size,
      .sequence_length = options.sequence_length / (options.cp_size * options.sp_size),
      .tp_size = options.tp_size,
      .sequence_parallel = options.sequence_parallel,
      .keeps_attention_scores = options.attn_implementation == "eager",
      .activation_checkpointing = options.activation_checkpointing};
  TransformerShape kept = shape;
  if (options.pp_size > 1) {
    const auto blocks = estimate::blocks_of_stages(shape.num_hidden_layers, options.pp_size);
    if (!blocks.ok()) return blocks.status();
    kept.num_hidden_layers = 0;
    // In the order of 1F1B a stage keeps a micro-batch for itself and for each stage behind it.
    for (int64_t stage = 0; stage < options.pp_size; ++stage) {
      const int64_t micro_batches = options.pp_size - stage;
      kept.num_hidden_layers =
          std::max(kept.num_hidden_layers, (*blocks)[static_cast<size_t>(stage)] * micro_batches);
    }
  }
  return Column{"Activations", [kept, activations](const std::string& dtype) {
                  return estimate::activation_bytes(dtype, kept, activations);
                }};
}

// Ranks along tp have whole heads. If there are fewer of keys and values than ranks, several ranks
// have each.
absl::Status check_heads(const Options& options, const TransformerShape& shape) {
  const int64_t ranks = options.tp_size, keys = shape.num_key_value_heads;
  const auto uneven = [&](int64_t heads, const char* of) {
    return invalid(options.model_name, " has ", heads, " heads of ", of, ", which ", ranks,
                   " ranks do not divide evenly; --tp_size ", std::gcd(heads, ranks), " does");
  };
  if (keys % ranks != 0 && ranks % keys != 0) return uneven(keys, "keys and values");
  const int64_t heads = shape.num_attention_heads;
  return heads % ranks == 0 ? absl::OkStatus() : uneven(heads, "its attention");
}

// Ranks along cp have two pieces of each sequence, and those along sp one.
absl::Status check_sequences(const Options& options, const TransformerShape& shape) {
  if (options.cp_size * options.sp_size == 1) return absl::OkStatus();
  if (options.attn_implementation == "eager") {
    return absl::InvalidArgumentError(
        "--attn_implementation eager keeps the scores of whole sequences, of which ranks along cp "
        "or sp have parts; leave it out");
  }
  const int64_t pieces = options.cp_size > 1 ? 2 * options.cp_size : options.sp_size;
  if (const int64_t rest = options.sequence_length % pieces; rest != 0) {
    return invalid("--sequence_length ", options.sequence_length, " is not ", pieces,
                   " equal pieces; ", options.sequence_length + pieces - rest, " is");
  }
  const int64_t heads = shape.num_attention_heads / options.tp_size;
  if (heads % options.sp_size == 0) return absl::OkStatus();
  return invalid(options.model_name, " has ", heads, " heads of its attention on a rank, which ",
                 options.sp_size, " ranks along sp do not divide evenly; --sp_size ",
                 std::gcd(heads, options.sp_size), " does");
}

absl::Status check_options(const Options& options) {
  if (options.zero_stage && shards_of(options) == 1) {
    return absl::InvalidArgumentError("--zero_stage has no meaning without --dp_shard_size");
  }
  if (options.zero_stage.value_or(3) < 3 && options.ep_size > 1) {
    return absl::InvalidArgumentError("--ep_size is of layouts with FSDP; leave --zero_stage out");
  }
  const auto illegal = find_illegal({.pp = options.pp_size,
                                     .dp_shard = options.dp_shard_size,
                                     .cp = options.cp_size,
                                     .sp = options.sp_size,
                                     .tp = options.tp_size,
                                     .ep = options.ep_size,
                                     .experts = options.ep_size > 1,
                                     .sequence_shards = options.sequence_parallel});
  if (illegal) return absl::InvalidArgumentError(illegal->text());
  if (options.tp_size > 1 || (options.tp_plan.empty() && !options.sequence_parallel)) {
    return absl::OkStatus();
  }
  return invalid(options.tp_plan.empty() ? "--sequence_parallel" : "--tp_plan",
                 " has no meaning without --tp_size");
}

double elements_of(const Architecture& architecture) {
  double elements = 0;
  for (const estimate::ArchitectureTensor& tensor : architecture.tensors) {
    elements += tensor.elements;
  }
  return elements;
}

// Where each part goes with the limits, in the first of the dtypes, and why.
absl::StatusOr<std::string> device_plan(const Options& options, const Architecture& architecture) {
  if (options.max_memory.empty()) return "";
  ACCELERATE_ASSIGN_OR_RETURN(const MaxMemory limits,
                              in_file("--max_memory", parse_max_memory(options.max_memory)));
  const std::string& dtype = options.dtypes.front();
  const auto inferred = infer_auto_device_map(estimate::module_tree(architecture), limits,
                                              {.sizes = {.dtype = dtype},
                                               .no_split_module_classes = {estimate::kNoSplitClass},
                                               .explain = true});
  if (!inferred.ok()) return inferred.status();
  return absl::StrCat("\n\nDevice map in ", dtype, ":\n", inferred->map.json(/*indent=*/2), "\n\n",
                      explain(*inferred));
}

absl::StatusOr<std::string> estimate(const Options& options, const Invocation& invocation) {
  HostFiles files;
  ACCELERATE_RETURN_IF_ERROR(check_options(options));
  ACCELERATE_ASSIGN_OR_RETURN(
      Architecture architecture,
      estimate::read_architecture(files, options.model_name,
                                  estimate::hub_cache_folder(invocation.environment)));
  if (!options.tp_plan.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(architecture.tp_plan,
                                read_file_as(files, options.tp_plan, estimate::parse_tp_plan));
  }
  // What the options say counts in place of what the model says of itself.
  for (const auto& [name, field] : estimate::kShapeFields) {
    const int64_t given = options.transformer.*field;
    if (given > 0) architecture.transformer.*field = given;
  }
  const TransformerShape& shape = architecture.transformer;
  ACCELERATE_RETURN_IF_ERROR(check_heads(options, shape));
  ACCELERATE_RETURN_IF_ERROR(check_sequences(options, shape));
  std::optional<estimate::TpPart> part;  // of a rank along tp, where there are several
  if (options.tp_size > 1) {
    ACCELERATE_ASSIGN_OR_RETURN(part, estimate::tp_part(architecture, options.tp_size));
  }
  const ModelSize size = estimate::model_size(architecture);
  const Architecture& of_rank = part ? part->architecture : architecture;
  const std::string& model = options.model_name;
  if (options.ep_size > 1) {
    ACCELERATE_RETURN_IF_ERROR(
        in_file(model, estimate::ep_part(of_rank, options.ep_size).status()));
  }
  std::vector<Architecture> stages = {of_rank};
  if (options.pp_size > 1) {
    ACCELERATE_ASSIGN_OR_RETURN(stages,
                                in_file(model, estimate::pp_parts(of_rank, options.pp_size)));
  }
  std::vector<Column> columns = {
      {"Largest Layer",
       [&](const std::string& dtype) { return size_in(dtype, size.largest_layer); }},
      {"Total Size", [&](const std::string& dtype) { return size_in(dtype, size.total); }},
      {"Training using Adam", [&](const std::string& dtype) -> std::optional<double> {
         const auto usage = estimate::training_usage(dtype, size.total);
         if (!usage) return std::nullopt;
         return usage->maximum();
       }}};
  std::vector<std::vector<Column>> by_stage;
  for (const Architecture& stage : stages) by_stage.push_back(columns_of(options, stage));
  for (Column& column : largest_of(by_stage)) columns.push_back(std::move(column));
  ACCELERATE_ASSIGN_OR_RETURN(std::optional<Column> activations, activation_column(options, shape));
  if (activations) columns.push_back(*std::move(activations));

  std::vector<std::string> headers = {"dtype"};
  for (const Column& column : columns) headers.push_back(column.header);
  std::vector<std::vector<std::string>> rows;
  for (const std::string& dtype : options.dtypes) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{dtype});
    for (const Column& column : columns) {
      const std::optional<double> bytes = column.bytes(dtype);
      row.push_back(bytes ? estimate::bytes_text(*bytes) : "N/A");
    }
  }
  ACCELERATE_ASSIGN_OR_RETURN(const std::string plan, device_plan(options, architecture));
  // As the model's library spells it.
  const bool is_of_timm = options.library_name == "timm" && !files.info(options.model_name).ok();
  const std::string name =
      is_of_timm ? estimate::add_timm_hub_prefix(options.model_name) : options.model_name;
  std::string shares;
  if (part) {
    shares = absl::StrFormat("\n\nEach of %d ranks along tp has %.0f of %.0f elements: %s",
                             options.tp_size, elements_of(of_rank), elements_of(architecture),
                             part->why);
  }
  if (stages.size() > 1) {
    double largest = 0;
    for (const Architecture& stage : stages) largest = std::max(largest, elements_of(stage));
    absl::StrAppendFormat(&shares, "\n\nThe largest of %d stages has %.0f of %.0f elements",
                          stages.size(), largest, elements_of(of_rank));
  }
  const std::string title = absl::StrCat("Memory Usage for loading `", name, "`");
  return absl::StrCat(text_table(headers, rows, title), shares, plan);
}

int run(const Options& options, Invocation& invocation) {
  if (options.trust_remote_code) {
    invocation.err << "accelerate estimate-memory: --trust_remote_code has no effect: no code of a "
                      "model is executed, its files' headers say the shapes\n";
  }
  const absl::StatusOr<std::string> table = estimate(options, invocation);
  if (!table.ok()) return fail_or_refuse(invocation, kName, table.status());
  invocation.out << *table << "\n";
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  add_value(app, "model_name", options.model_name, "",
            "folder of weights, safetensors file or index, JSON description, or the name of a "
            "model in the hub's cache")
      ->required();
  add_value(app, "--library_name", options.library_name, "NAME",
            "accepted; shapes come from files, whatever library made them")
      ->check(CLI::IsMember({"timm", "transformers", "diffusers"}));
  add_value(app, "--dtypes", options.dtypes, "",
            "one or more of float32 float16 bfloat16 int8 int4")
      ->expected(1, static_cast<int>(estimate_dtypes().size()))
      ->delimiter(',')
      ->check(CLI::IsMember(estimate_dtypes()));
  app.add_flag("--trust_remote_code", options.trust_remote_code,
               "has no effect: no code of a model is executed");

  const auto count = [&app](const char* name, int64_t& value, const char* help, const char* group) {
    add_value(app, name, value, "N", help)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
        ->group(group);
  };
  add_value(app, "--max_memory", options.max_memory, "LIMITS",
            "limits of devices, as in 0=20GB,cpu=64GiB: prints a device map in the first of "
            "the dtypes, and each decision");
  constexpr char kDivided[] = "Divided training (extra columns, bytes on each rank)";
  count("--dp_shard_size", options.dp_shard_size, "ranks that ZeRO or FSDP divides the states over",
        kDivided);
  count("--tp_size", options.tp_size, "ranks that tensor parallelism divides layers over",
        kDivided);
  count("--ep_size", options.ep_size,
        "ranks of --dp_shard_size, --cp_size and --sp_size that divide experts, in place of "
        "ZeRO's columns",
        kDivided);
  count("--cp_size", options.cp_size,
        "ranks with parts of each sequence, which divide the states as those of --dp_shard_size",
        kDivided);
  count("--sp_size", options.sp_size,
        "the same of ranks that divide the heads of attention (Ulysses)", kDivided);
  count("--pp_size", options.pp_size,
        "ranks with stages of the blocks, of which the columns have the largest", kDivided);
  add_value(app, "--tp_plan", options.tp_plan, "FILE",
            "JSON file that says how, as {\"layers.*.up_proj\": \"colwise\"}; default: the "
            "description's, or by the usual names of layers")
      ->group(kDivided);
  add_value(app, "--zero_stage", options.zero_stage, "N", "1, 2 or 3 (= FSDP) only; default: all")
      ->check(CLI::Range(1, 3))
      ->group(kDivided);
  constexpr char kActivations[] = "Activations of a transformer (an extra column)";
  count("--batch_size", options.batch_size,
        "samples on each rank, with --pp_size in each micro-batch", kActivations);
  count("--sequence_length", options.sequence_length, "tokens in a sample", kActivations);
  add_value(app, "--attn_implementation", options.attn_implementation, "",
            "eager keeps scores, sdpa does not (default sdpa)")
      ->check(CLI::IsMember({"eager", "sdpa"}))
      ->group(kActivations);
  app.add_flag("--activation_checkpointing", options.activation_checkpointing,
               "layers keep their inputs only")
      ->group(kActivations);
  app.add_flag("--sequence_parallel", options.sequence_parallel,
               "ranks of --tp_size have parts of the sequences between layers that they divide")
      ->group(kActivations);
  for (const auto& [name, field] : estimate::kShapeFields) {
    const bool is_inside = field == &TransformerShape::intermediate_size;
    count(
        absl::StrCat("--", name).c_str(), options.transformer.*field,
        is_inside ? "of layers without dropout, instead of the model's" : "instead of the model's",
        kActivations);
  }
}

}  // namespace

const Command kEstimateMemory = {kName, "Print what a model takes to load and to train.",
                                 with_options<declare, run>};

}  // namespace accelerate::launcher::commands
