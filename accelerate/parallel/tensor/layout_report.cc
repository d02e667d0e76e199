#include "accelerate/parallel/tensor/layout_report.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/tensor/tensor_mark.h"
#include "accelerate/parallel/tensor/tensor_technique.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

using Shape = std::vector<int64_t>;
using Rules = std::unordered_map<std::string, const LayerParameter*>;

constexpr size_t kColumns = 100;
constexpr int64_t kFloatBytes = 4;

// "384x128"; "1 element" for a tensor without dims.
std::string shape_text(const Shape& shape) {
  return shape.empty() ? "1 element" : absl::StrJoin(shape, "x");
}

// What a rank sends in an all-reduce of so many bytes, or of `once` of them in an all-gather or a
// reduce-scatter.
int64_t all_reduced(int64_t bytes, int ranks) { return 2 * (ranks - 1) * bytes / ranks; }
int64_t once(int64_t bytes, int ranks) { return (ranks - 1) * bytes / ranks; }

// What the rank trains of the tensor.
Shape trained_shape(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  Shape shape = cut_shape(placement, mesh, rank);
  if (shape.empty()) return shape;
  shape[0] =
      shard_rows(shape[0], mesh.size(placement.rows), mesh.coordinate(rank, placement.rows)).count;
  return shape;
}

std::vector<std::string> how_parts(const TensorPlacement& placement, const Mesh& mesh,
                                   const LayerParameter* layer) {
  std::vector<std::string> parts;
  for (const Cut& cut : placement.cuts) {
    if (mesh.size(cut.axis) == 1) continue;
    const bool has_word = layer != nullptr && cut.axis == MeshAxis::kTp;
    std::string text = has_word ? to_string(layer->rule.style) : absl::StrCat("dim ", cut.dim);
    absl::StrAppend(&text, " over ", to_string(cut.axis));
    if (has_word && layer->rule.groups > 0) {
      absl::StrAppend(&text, " in ", layer->rule.groups, " groups");
    }
    if (cut.blocks.size() > 1) {
      absl::StrAppend(&text, " in blocks of ", absl::StrJoin(cut.blocks, ", "));
    }
    parts.push_back(std::move(text));
    if (!has_word) continue;
    if (layer->rule.style == TensorStyle::kColumn && layer->rule.gather_output) {
      parts.emplace_back("output gathered");
    }
    if (layer->rule.split_input) parts.emplace_back("input split");
  }
  if (const AxisSet rows = mesh.several(placement.rows); !rows.empty()) {
    parts.push_back(absl::StrCat("rows over ", rows.to_string()));
  }
  if (!placement.stages.empty() && mesh.size(MeshAxis::kPp) > 1) {
    parts.push_back(absl::StrCat(placement.stages.size() == 1 ? "stage " : "stages ",
                                 absl::StrJoin(placement.stages, ", ")));
  }
  if (parts.empty()) parts.emplace_back("whole");
  if (const AxisSet sums = mesh.several(placement.sums); !sums.empty()) {
    parts.push_back(absl::StrCat("gradients summed over ", sums.to_string()));
  }
  return parts;
}

// A parameter, or several whose names differ in numbers alone.
struct Row {
  std::vector<std::string> name;  // its parts between dots
  std::string whole, own;
  std::vector<std::string> how;
};

// The place of the which-th number in a name; the name's size if there is none.
size_t find_number(const std::vector<std::string>& name, size_t which) {
  for (size_t i = 0; i < name.size(); ++i) {
    if (!name[i].empty() && absl::ascii_isdigit(static_cast<unsigned char>(name[i][0])) &&
        which-- == 0) {
      return i;
    }
  }
  return name.size();
}

// Makes one row of those that differ in the which-th number of their names alone, in the place of
// the first one.
std::vector<Row> folded(std::vector<Row> rows, size_t which) {
  std::vector<Row> first;
  std::vector<std::vector<int>> numbers;
  std::map<std::vector<std::string>, size_t> known;
  for (Row& row : rows) {
    const size_t place = find_number(row.name, which);
    int number = 0;
    const bool folds = place < row.name.size() && absl::SimpleAtoi(row.name[place], &number);
    std::vector<std::string> key = row.name;
    if (folds) key[place] = "*";
    key.insert(key.end(), {row.whole, row.own, absl::StrJoin(row.how, ";")});
    const auto [found, is_new] = known.try_emplace(std::move(key), first.size());
    if (is_new) {
      first.push_back(std::move(row));
      numbers.emplace_back();
    }
    if (folds) numbers[found->second].push_back(number);
  }
  for (size_t i = 0; i < first.size(); ++i) {
    if (numbers[i].size() < 2) continue;
    std::ranges::sort(numbers[i]);
    first[i].name[find_number(first[i].name, which)] = rank_ranges(numbers[i]);
  }
  return first;
}

// The parts with marks between them, behind `begin`; lines that are full leave some to the next
// ones, which are indented.
std::string wrapped(std::string begin, const std::vector<std::string>& parts, char mark,
                    size_t indent) {
  std::string text, line = std::move(begin);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) line += mark;
    // Room for a mark behind the part as well.
    if (i > 0 && line.size() + parts[i].size() + 2 > kColumns) {
      absl::StrAppend(&text, line, "\n");
      line = std::string(indent, ' ');
    } else if (i > 0) {
      line += ' ';
    }
    line += parts[i];
  }
  return text + line;
}

std::string table_text(const std::vector<Row>& rows, int rank) {
  std::vector<std::vector<std::string>> cells = {
      {"parameter", "whole", absl::StrCat("rank ", rank)}};
  for (const Row& row : rows) {
    cells.push_back({absl::StrJoin(row.name, "."), row.whole, row.own});
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (size_t i = 0; i < cells.size(); ++i) {
    std::string line;
    for (size_t cell = 0; cell < widths.size(); ++cell) {
      absl::StrAppend(&line, cells[i][cell],
                      std::string(widths[cell] + 2 - cells[i][cell].size(), ' '));
    }
    const size_t indent = line.size();
    const std::vector<std::string> how = i == 0 ? std::vector<std::string>{"how"} : rows[i - 1].how;
    absl::StrAppend(&text, wrapped(std::move(line), how, ';', indent), "\n");
  }
  return text;
}

// The module of a parameter, and the module that has that one.
std::string parent_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// What the layers that ranks along tp divide send for a token.
class TokenTraffic {
 public:
  TokenTraffic(const torch::nn::Module& module, const TensorParallelTechnique& technique)
      : ranks_(technique.handler().group()->getSize()),
        gathers_again_(technique.handler().gathers_again()) {
    const auto* structure = dynamic_cast<const ModelStructure*>(&module);
    const auto head =
        structure != nullptr ? structure->output_embeddings() : std::optional<std::string>();
    std::unordered_set<const c10::TensorImpl*> seen, heads;
    for (const auto& [tensor, layer] : technique.handler().parameters()) {
      const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
      const bool is_new = seen.insert(impl).second;
      if (!layer->cut_dim || layer->whole.size() != 2) continue;
      const auto size = static_cast<int64_t>(c10::elementSize(tensor.scalar_type()));
      if (is_new) add(*layer, size);
      // A tied head, which has a name of its own or is another use of the table.
      const bool is_tied =
          layer->rule.style == TensorStyle::kEmbedding && head && *head == parent_of(layer->name);
      if ((!is_new || is_tied) && heads.insert(impl).second) add_column(*layer, size);
    }
    if (technique.logits_group() != nullptr) loss_ = all_reduced(3 * kFloatBytes, ranks_);
  }

  std::string text() const {
    std::vector<std::string> parts;
    int64_t total = 0;
    for (const auto& [what, bytes] :
         {std::pair("row layers", rows_), std::pair("column layers", columns_),
          std::pair("inputs gathered again", gathers_again_ ? inputs_again_ : 0),
          std::pair("gathered outputs", outputs_), std::pair("embeddings", embeddings_),
          std::pair("first shards of sequences", has_shards_ ? whole_embeddings_ : 0),
          std::pair("loss", loss_)}) {
      if (bytes > 0) parts.push_back(absl::StrCat(what, " ", bytes));
      total += bytes;
    }
    return wrapped(absl::StrCat("tp: ", total, " a token: "), parts, ',', 4);
  }

 private:
  void add(const LayerParameter& layer, int64_t size) {
    switch (layer.rule.style) {
      case TensorStyle::kRow:
        rows_ += all_reduced(layer.whole[0] * size, ranks_);
        if (layer.rule.split_input) rows_ += once(layer.whole[1] * size, ranks_);
        has_shards_ |= layer.rule.sequence;
        break;
      case TensorStyle::kColumn: add_column(layer, size); break;
      case TensorStyle::kEmbedding:
        embeddings_ += all_reduced(layer.whole[1] * size, ranks_);
        if (!layer.rule.sequence) whole_embeddings_ += once(layer.whole[1] * size, ranks_);
        break;
      case TensorStyle::kReplicate: break;
    }
  }
  void add_column(const LayerParameter& layer, int64_t size) {
    if (inputs_.emplace(parent_of(parent_of(layer.name)), layer.whole[1]).second) {
      columns_ += all_reduced(layer.whole[1] * size, ranks_);
      inputs_again_ += once(layer.whole[1] * size, ranks_);
    }
    if (layer.rule.gather_output) outputs_ += once(layer.whole[0] * size, ranks_);
  }

  const int ranks_;
  const bool gathers_again_;
  // The modules with column layers, and the features of their inputs.
  std::set<std::pair<std::string, int64_t>> inputs_;
  int64_t rows_ = 0, columns_ = 0, inputs_again_ = 0, outputs_ = 0;
  int64_t embeddings_ = 0, whole_embeddings_ = 0, loss_ = 0;
  bool has_shards_ = false;
};

// What the rank sends for parameters and their gradients in a step.
class StepTraffic {
 public:
  // Ranks along `tokens` have other tokens.
  StepTraffic(const Mesh& mesh, AxisSet tokens, int rank)
      : mesh_(mesh), tokens_(tokens), rank_(rank) {}

  void add(const TensorPlacement& placement, bool is_trained) {
    const auto size = static_cast<int64_t>(c10::elementSize(placement.dtype));
    const int64_t trained = c10::multiply_integers(trained_shape(placement, mesh_, rank_)) * size;
    if (const AxisSet rows = mesh_.several(placement.rows); !rows.empty()) {
      Shape part = cut_shape(placement, mesh_, rank_);
      if (!part.empty()) part[0] = shard_rows(part[0], mesh_.size(rows), 0).count;
      const int64_t bytes = (mesh_.size(rows) - 1) * c10::multiply_integers(part) * size;
      Shards& shards = shards_[rows.to_string()];
      shards.gathered += bytes;
      if (is_trained) shards.reduced += bytes;
    }
    if (!is_trained) return;
    if (const AxisSet replicas = mesh_.several(tokens_ - placement.rows); !replicas.empty()) {
      averaged_[replicas.to_string()] += all_reduced(trained, mesh_.size(replicas));
    }
    if (const AxisSet sums = mesh_.several(placement.sums); !sums.empty()) {
      sums_[sums.to_string()] += all_reduced(trained, mesh_.size(sums));
    }
    for (const Cut& cut : placement.cuts) {
      if (cut.copies > 1) sums_[AxisSet{cut.axis}.to_string()] += all_reduced(trained, cut.copies);
    }
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const auto& [axes, bytes] : averaged_) {
      lines.push_back(absl::StrCat(axes, ": ", bytes, " a step to average gradients"));
    }
    for (const auto& [axes, bytes] : shards_) {
      lines.push_back(absl::StrCat(axes, ": ", bytes.gathered, " to gather parameters once, ",
                                   bytes.reduced, " a step to reduce gradients"));
    }
    for (const auto& [axes, bytes] : sums_) {
      lines.push_back(absl::StrCat(axes, ": ", bytes, " a step to sum partial gradients"));
    }
    return lines;
  }

 private:
  struct Shards {
    int64_t gathered = 0, reduced = 0;
  };

  const Mesh& mesh_;
  const AxisSet tokens_;
  const int rank_;
  std::map<std::string, int64_t> averaged_;  // by axes
  std::map<std::string, Shards> shards_;     // by axes
  std::map<std::string, int64_t> sums_;      // by axes
};

}  // namespace

std::string layout_text(const ModelState& model) {
  const ModelPlacements& placements = model.placements();
  TORCH_CHECK_VALUE(placements.layout != nullptr, "layout_text: the model was not prepared");
  const Mesh& mesh = placements.layout->mesh();
  const int rank = placements.rank;
  const auto* const technique = model.find_technique<TensorParallelTechnique>();
  Rules rules;
  if (technique != nullptr) {
    for (const auto& [tensor, layer] : technique->handler().parameters()) {
      rules.emplace(layer->name, layer.get());
    }
  }
  std::vector<Row> rows;
  StepTraffic traffic(mesh,
                      AxisSet{MeshAxis::kDp} |
                          (placements.layout->divides() & AxisSet{MeshAxis::kCp, MeshAxis::kSp}),
                      rank);
  int64_t whole = 0, own = 0;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : model.module()->named_parameters()) {
    const TensorPlacement* const placement = placements.layout->find(item.key());
    if (placement == nullptr) continue;
    const Shape shape = trained_shape(*placement, mesh, rank);
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      whole += c10::multiply_integers(placement->shape);
      own += c10::multiply_integers(shape);
      traffic.add(*placement, item.value().requires_grad());
    }
    const auto rule = rules.find(item.key());
    rows.push_back(
        {.name = absl::StrSplit(item.key(), '.'),
         .whole = shape_text(placement->shape),
         .own = shape_text(shape),
         .how = how_parts(*placement, mesh, rule != rules.end() ? rule->second : nullptr)});
  }
  // Numbers of blocks, and inside of these of experts or layers.
  for (const size_t which : {size_t{1}, size_t{0}}) rows = folded(std::move(rows), which);
  std::string text =
      absl::StrCat("layout of ", mesh.num_ranks(), mesh.num_ranks() == 1 ? " rank" : " ranks, ",
                   mesh.num_ranks() == 1 ? "" : mesh.to_string(), ": rank ", rank, " has ", own,
                   " of ", whole, " elements\n", table_text(rows, rank));
  std::vector<std::string> lines = traffic.lines();
  if (technique != nullptr) lines.push_back(TokenTraffic(*model.module(), *technique).text());
  if (!lines.empty()) {
    absl::StrAppend(&text, "a rank sends, in bytes, forward and backward\n",
                    absl::StrJoin(lines, "\n"), "\n");
  }
  for (const std::unique_ptr<Technique>& each : model.techniques()) {
    if (const std::string line = each->passes_text(); !line.empty()) {
      absl::StrAppend(&text, line, "\n");
    }
  }
  return text;
}

namespace internal {

void print_layout(const ModelState& model) {
  Runtime& runtime = Runtime::current();
  if (runtime.topology().rank == 0) runtime.write_console(ConsoleStream::kOut, layout_text(model));
}

}  // namespace internal
}  // namespace accelerate
