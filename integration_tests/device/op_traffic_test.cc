// What every operator of the cases in op_cases.h costs on a simulated device: the bytes that it
// reads and writes, and its FLOP. This file counts them again, one element and one multiply-add at
// a time, from the arguments and results that pass a handler in front of the device. One shape:
// operators of one device.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/SparseTensorImpl.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "accelerate/operators/operator_mode.h"
#include "integration_tests/device/op_cases.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"

namespace accelerate::device_test {
namespace {

using simulator::Cluster;
using simulator::Rank;
using Values = std::vector<c10::IValue>;
using Names = std::set<std::string>;

struct Cost {
  double bytes = 0;
  double flops = 0;
};
using Costs = std::map<std::string, Cost>;

// ---- Bytes.

// The bytes under a tensor's elements, those of an expanded one once.
double bytes_under(const Tensor& tensor) {
  if (tensor.numel() == 0 || tensor._is_zerotensor()) return 0;
  std::set<int64_t> offsets{0};
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    std::set<int64_t> more;
    for (int64_t i = 0; i < tensor.size(dim); ++i) {
      for (const int64_t offset : offsets) more.insert(offset + i * tensor.stride(dim));
    }
    offsets = std::move(more);
  }
  return static_cast<double>(offsets.size() * tensor.itemsize());
}

// The dense tensors of the device in a value.
void collect(const Tensor& tensor, Tensors& found) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return;
  if (tensor.is_sparse()) {
    const auto* sparse = static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    found.push_back(sparse->indices());
    found.push_back(sparse->values());
  } else {
    found.push_back(tensor);
  }
}

Tensors tensors_in(const c10::IValue& value) {
  Tensors found;
  if (value.isTensor()) collect(value.toTensor(), found);
  if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) collect(tensor, found);
  }
  if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor) collect(*tensor, found);
    }
  }
  return found;
}

bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* alias = argument.alias_info();
  if (alias == nullptr) return false;
  const auto& parts = alias->containedTypes();
  return alias->isWrite() || std::any_of(parts.begin(), parts.end(),
                                         [](const c10::AliasInfo& part) { return part.isWrite(); });
}

// These fill their first argument, whatever is in it.
const Names& fillers() {
  static const Names& names = *new Names{
      "aten::copy_",      "aten::zero_",       "aten::fill_",      "aten::normal_",
      "aten::uniform_",   "aten::random_",     "aten::bernoulli_", "aten::exponential_",
      "aten::geometric_", "aten::log_normal_", "aten::cauchy_",    "aten::_foreach_zero_"};
  return names;
}

// These need the shape of their second argument, but not its elements: the gradient goes where the
// indices say, or to all elements of a window or of an edge alike.
const Names& shape_takers() {
  static const Names& names = *new Names{
      "aten::nll_loss_backward",
      "aten::nll_loss2d_backward",
      "aten::avg_pool2d_backward",
      "aten::avg_pool3d_backward",
      "aten::_adaptive_avg_pool2d_backward",
      "aten::_adaptive_avg_pool3d_backward",
      "aten::adaptive_max_pool2d_backward",
      "aten::adaptive_max_pool3d_backward",
      "aten::max_pool2d_with_indices_backward",
      "aten::max_pool3d_with_indices_backward",
      "aten::fractional_max_pool2d_backward",
      "aten::reflection_pad1d_backward",
      "aten::reflection_pad2d_backward",
      "aten::reflection_pad3d_backward",
      "aten::replication_pad1d_backward",
      "aten::replication_pad2d_backward",
      "aten::replication_pad3d_backward",
  };
  return names;
}

bool reads(const c10::OperatorHandle& op, size_t argument) {
  const std::string& name = op.schema().name();
  if (op.schema().arguments()[argument].is_out()) return false;
  if (argument == 0 && fillers().contains(name)) return false;
  return argument != 1 || !shape_takers().contains(name);
}

bool writes(const c10::OperatorHandle& op, size_t argument) {
  const c10::Argument& described = op.schema().arguments()[argument];
  // Without a scale for them, fused optimizers leave the gradients alone.
  return is_written(described) && described.name() != "grads";
}

// A call's arguments, which are the only ones to tell how large they were before it.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, Values values) : op_(op), values_(std::move(values)) {
    std::set<const c10::TensorImpl*> seen;
    for (size_t i = 0; i < values_.size(); ++i) {
      for (const Tensor& tensor : tensors_in(values_[i])) {
        if (reads(op_, i) && seen.insert(tensor.unsafeGetTensorImpl()).second) {
          read_ += bytes_under(tensor);
        }
      }
    }
  }

  const Values& values() const { return values_; }

  // After the call: what it has read and written.
  double bytes(const Values& results) const {
    std::set<const c10::TensorImpl*> written;
    double bytes = read_;
    const auto write = [&](const Tensor& tensor) {
      if (written.insert(tensor.unsafeGetTensorImpl()).second) bytes += bytes_under(tensor);
    };
    std::set<const c10::TensorImpl*> given;
    for (size_t i = 0; i < values_.size(); ++i) {
      for (const Tensor& tensor : tensors_in(values_[i])) {
        given.insert(tensor.unsafeGetTensorImpl());
        if (writes(op_, i)) write(tensor);
      }
    }
    for (const c10::IValue& result : results) {
      for (const Tensor& tensor : tensors_in(result)) {
        if (!given.contains(tensor.unsafeGetTensorImpl())) write(tensor);
      }
    }
    return bytes;
  }

 private:
  const c10::OperatorHandle& op_;
  const Values values_;
  double read_ = 0;
};

// These touch a part of their first argument. Their bytes are worked out below, call by call.
const Names& indexers() {
  static const Names& names = *new Names{"aten::index_select",
                                         "aten::gather",
                                         "aten::take",
                                         "aten::index",
                                         "aten::_index_put_impl_",
                                         "aten::index_add_",
                                         "aten::index_copy_",
                                         "aten::index_fill_",
                                         "aten::index_reduce_",
                                         "aten::scatter_",
                                         "aten::scatter_add_",
                                         "aten::scatter_reduce_",
                                         "aten::put_",
                                         "aten::nll_loss_forward",
                                         "aten::nll_loss2d_forward",
                                         "aten::embedding_renorm_",
                                         "aten::_embedding_bag",
                                         "aten::_embedding_bag_forward_only"};
  return names;
}

// ---- FLOP.

Tensor tensor_at(const Values& values, size_t i) { return values[i].toTensor(); }

// The products of a matrix with the columns of another.
double matrix_flops(const Tensor& left, double columns) {
  Tensors parts;
  collect(left, parts);
  return 2.0 * (left.is_complex() ? 4 : 1) * static_cast<double>(parts.back().numel()) * columns;
}

double columns_of(const Tensor& matrix) {
  return matrix.dim() < 2 ? 1 : static_cast<double>(matrix.size(-1));
}

// Each element of `whole` takes a product with each weight of its channel.
double convolution_flops(const Tensor& whole, const Tensor& weight) {
  return 2.0 * static_cast<double>(whole.numel()) * static_cast<double>(weight.numel()) /
         static_cast<double>(weight.size(0));
}

// The products with each key that a query sees, for the scores.
double scores_flops(const Tensor& query, const Tensor& key, bool is_causal) {
  double pairs = 0;
  for (int64_t i = 0; i < query.size(-2); ++i) {
    for (int64_t j = 0; j < key.size(-2) && (!is_causal || j <= i); ++j) ++pairs;
  }
  return 2.0 * static_cast<double>(query.numel() / query.size(-2)) * pairs;
}

// Each row takes a product with each number of the weights, which are the matrices in the list.
double layer_flops(const Tensor& input, const Tensors& weights) {
  double products = 0;
  for (const Tensor& weight : weights) {
    if (weight.dim() == 2) products += static_cast<double>(weight.numel());
  }
  return 2.0 * static_cast<double>(input.numel()) / static_cast<double>(input.size(-1)) * products;
}

// A list of parameters comes after that of states, or after the one tensor of them; input and batch
// sizes of a packed sequence come first.
Tensors weights_in(const Values& values) {
  Tensors weights;
  for (const c10::IValue& value : values) {
    if (value.isTensorList()) append(weights, value.toTensorVector());
  }
  return weights;
}

double flops(const std::string& name, const Values& values, const Values& results) {
  const auto is = [&](const Names& names) { return names.contains(name.substr(6)); };
  if (is({"mm", "bmm", "mv", "dot", "vdot"})) {
    return matrix_flops(tensor_at(values, 0), columns_of(tensor_at(values, 1)));
  }
  if (is({"addmm", "addmm_", "_addmm_activation", "addmv", "addmv_", "baddbmm", "baddbmm_",
          "addbmm", "addbmm_"})) {
    return matrix_flops(tensor_at(values, 1), columns_of(tensor_at(values, 2)));
  }
  if (is({"addr", "addr_"})) return 2.0 * static_cast<double>(tensor_at(results, 0).numel());
  if (is({"convolution"})) {
    const bool transposed = values[6].toBool();
    return convolution_flops(tensor_at(transposed ? values : results, 0), tensor_at(values, 1));
  }
  if (is({"convolution_backward"})) {
    const bool transposed = values[7].toBool();
    const int gradients = tensor_at(results, 0).defined() + tensor_at(results, 1).defined();
    return gradients *
           convolution_flops(tensor_at(values, transposed ? 1 : 0), tensor_at(values, 2));
  }
  // Values are as long as keys in all cases, so each product is as large as the scores.
  if (is({"_scaled_dot_product_flash_attention_for_cpu"})) {
    return 2 * scores_flops(tensor_at(values, 0), tensor_at(values, 1), values[4].toBool());
  }
  if (is({"_scaled_dot_product_flash_attention_for_cpu_backward"})) {
    return 5 * scores_flops(tensor_at(values, 1), tensor_at(values, 2), values[7].toBool());
  }
  if (is({"lstm", "gru", "rnn_tanh", "rnn_relu"})) {
    return layer_flops(tensor_at(values, 0), weights_in(values));
  }
  if (is({"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"})) {
    return layer_flops(tensor_at(values, 0), {tensor_at(values, 2), tensor_at(values, 3)});
  }
  return 0;
}

// What an element moves: a number of 4 bytes once, and its index of 8 bytes. A gather reads a
// number and writes it, as a scatter does; one that adds also reads what it adds to.
constexpr double kMoved = 4 + 8 + 4;
constexpr double kAdded = 4 + 8 + 2 * 4;

// Five rows of [6, 8], or five columns, picked by five indices; and five rows that are added to.
constexpr double kRows = 5 * 8 + 2 * 5 * 8 * 4, kColumns = 5 * 8 + 2 * 6 * 5 * 4;
constexpr double kAddedRows = 5 * 8 + 3 * 5 * 8 * 4, kAddedColumns = 5 * 8 + 3 * 6 * 5 * 4;
// The same, written and not read.
constexpr double kFilledRows = 5 * 8 + 5 * 8 * 4, kFilledColumns = 5 * 8 + 6 * 5 * 4;

// A mask of [6, 8] picks from all of it; 24 of its 48 elements are positive.
constexpr double kMask = 48 + 48 * 4;
constexpr double kPositive = 24 * 4;
// A mask of the rows, of which two begin with a positive number.
constexpr double kMaskOfRows = 6 + 48 * 4;
constexpr double kPositiveRows = 2 * 8 * 4;

// Bags of 6 numbers each: the rows of a table of [.., 6], the indices, where each bag begins, the
// bags, and for each bag its size and an index that only maxima use.
constexpr double bags(double rows, double count) {
  return rows * (6 * 4 + 8) + count * (8 + 6 * 4 + 2 * 8);
}

// The bytes of indexers, by case and operator.
using ByHand = std::map<std::pair<std::string, std::string>, double>;
const ByHand& by_hand() {
  static const ByHand& costs = *new ByHand{
      // The sizes of [6, 11]: the gradients of 6 and 11 maxima, of 6 medians, of 6 values, of 18
      // and 22.
      {{"max_min", "aten::scatter_"}, (6 + 11) * kMoved},
      {{"median", "aten::scatter_"}, 6 * kMoved},
      {{"kthvalue", "aten::scatter_"}, 6 * kMoved},
      {{"topk", "aten::scatter_"}, (18 + 22) * kMoved},
      {{"sort", "aten::scatter_"}, 2 * 66 * kMoved},
      {{"cummax_cummin", "aten::scatter_add_"}, 2 * 66 * kAdded},
      // Among 66 sorted numbers, 1 and 6 pairs to interpolate between, and 11 without.
      {{"quantile", "aten::gather"}, (2 * 1 + 2 * 6 + 11) * kMoved},
      {{"quantile", "aten::scatter_add_"}, (2 * 1 + 2 * 6 + 11) * kAdded},
      {{"quantile", "aten::scatter_"}, 3 * 66 * kMoved},
      // The diagonal of [6, 6], with one gradient.
      {{"trace", "aten::index_fill_"}, 6 * (8 + 4) + 4},
      {{"max_unpool2d", "aten::gather"}, 2 * 3 * 4 * 4 * kMoved},

      // Nine targets and their scores, the sum and the sum of weights; five weights besides; nine
      // losses instead of the sum.
      {{"cross_entropy", "aten::nll_loss_forward"},
       3 * 9 * (8 + 4) + (4 + 4) + (5 * 4 + 4 + 4) + (9 * 4 + 4)},
      {{"nll_loss", "aten::nll_loss_forward"}, 2 * 9 * (8 + 4) + (4 + 4) + (9 * 4 + 4)},
      {{"cross_entropy_of_images", "aten::nll_loss2d_forward"}, 2 * 4 * 6 * (8 + 4) + 4 + 4},
      // 28 rows of 6 numbers three times.
      {{"embedding", "aten::index_select"}, 3 * 28 * (8 + 2 * 6 * 4)},
      {{"embedding_renorm", "aten::embedding_renorm_"}, 5 * (8 + 2 * 6 * 4)},
      {{"embedding_with_sparse_gradient", "aten::index_select"}, 12 * (8 + 2 * 6 * 4)},
      {{"sparse_gradient_accumulates", "aten::index_select"}, 2 * 5 * (8 + 2 * 6 * 4)},
      // All but plain sums also tell each index its bag, and maxima have an index for each number.
      {{"embedding_bag_mode_0", "aten::_embedding_bag"}, bags(20, 4)},
      {{"embedding_bag_mode_1", "aten::_embedding_bag"}, bags(20, 4) + 20 * 8},
      {{"embedding_bag_mode_2", "aten::_embedding_bag"}, bags(20, 4) + 20 * 8 + 4 * 5 * 8},
      {{"embedding_bag_weighted", "aten::_embedding_bag"}, bags(20, 4) + 20 * 4},
      {{"embedding_bag_with_sparse_gradient", "aten::_embedding_bag"}, bags(12, 3)},
      // Ones of 8 bytes at 28 indices; of 4 at 9.
      {{"one_hot", "aten::scatter_"}, 28 * (8 + 8)},
      {{"gumbel_softmax", "aten::scatter_"}, 9 * (8 + 4)},

      // Rows, columns, five elements by the same indices twice, 5 x 5 by two views of them, and
      // five
      // of a column.
      {{"index", "aten::index"},
       kRows + kColumns + 5 * kMoved + (2 * 40 + 2 * 25 * 4) + 5 * kMoved},
      {{"index", "aten::_index_put_impl_"},
       kAddedRows + kAddedColumns + 5 * kAdded + (2 * 40 + 3 * 25 * 4) + 5 * kAdded},
      {{"index_by_mask", "aten::index"}, kMask + kPositive + kMaskOfRows + kPositiveRows},
      // To add is to read as well.
      {{"index_by_mask", "aten::_index_put_impl_"},
       kMask + 48 * 4 + kPositive + kMaskOfRows + 48 * 4 + kPositiveRows},
      {{"index_select", "aten::index_select"}, kRows + kColumns},
      {{"index_select", "aten::index_add_"}, kAddedRows + kAddedColumns},
      {{"gather", "aten::gather"}, 2 * 32 * kMoved},
      {{"gather", "aten::scatter_add_"}, 2 * 32 * kAdded},
      {{"take", "aten::take"}, 12 * kMoved},
      {{"take", "aten::put_"}, 12 * kAdded},
      // Rows of 8 bytes, 22 of 48 such numbers, and rows of one byte.
      {{"index_of_integers", "aten::index"},
       (40 + 2 * 40 * 8) + (48 + 48 * 8 + 22 * 8) + (40 + 2 * 40)},
      // Forward, rows that are added, rows, and one number for a mask. Then zeros in place of the
      // last two, and the gradients at all three.
      {{"index_put", "aten::_index_put_impl_"}, kAddedRows + kRows + kMask + 4 + kRows + kMask + 4},
      {{"index_put", "aten::index"}, 2 * kRows + kMask + kPositive},
      {{"index_put_in_place", "aten::_index_put_impl_"}, 2 * (8 + 2 * 8 * 4) + kMask + 4},
      {{"index_add", "aten::index_select"}, kRows},
      {{"index_copy", "aten::index_fill_"}, kFilledRows},
      {{"index_copy", "aten::index_select"}, kRows},
      // Forward and back, the columns first with a tensor's number. Its gradient is the sum over
      // the
      // three columns that the five indices name.
      {{"index_fill", "aten::index_fill_"}, 2 * kFilledRows + 2 * kFilledColumns + 4},
      {{"index_fill", "aten::index_select"}, 3 * (8 + 2 * 6 * 4)},
      // For the mean the counts and the gradient, for the maximum the result and the gradient.
      {{"index_reduce", "aten::index_select"}, 4 * kRows},
      // The indices are expanded: four are in memory.
      {{"scatter", "aten::gather"}, 4 * 8 + 2 * 32 * 4},
      {{"scatter_add", "aten::gather"}, 32 * kMoved},
      // Sum 1, product 3, mean 2, maximum and minimum 2 each.
      {{"scatter_reduce", "aten::gather"}, (1 + 3 + 2 + 2 + 2) * 32 * kMoved},
      {{"put", "aten::put_"}, 5 * kAdded},
      {{"put", "aten::take"}, 5 * kMoved},
      {{"repeat_interleave_by_tensor", "aten::index_select"}, 5 * (8 + 2 * 2 * 4)},
      {{"repeat_interleave_by_tensor", "aten::index_add_"}, 5 * (8 + 3 * 2 * 4)},
      // Four elements with two coordinates, of which three are picked.
      {{"sparse_mask_and_transpose", "aten::index_select"}, 2 * 8 + (4 + 3) * (2 * 8 + 4)},
      // A constant of zeros becomes one number, which is expanded.
      {{"zeros_without_memory", "aten::mm"}, 12 * 4 + 9 * 4 + 4},
  };
  return costs;
}

// ---- What a case does.

// Adds up what the operators have to cost that give the device a kernel of their name.
class Expectation final : public OperatorHandler {
 public:
  Expectation() : OperatorHandler(OperatorOrder::kLinearProducts) {}

  void call(const OperatorCall& call) override {
    const c10::FunctionSchema& schema = call.op().schema();
    const Arguments arguments(call.op(), top(call, schema.arguments().size()));
    running_.push_back({schema.name(), schema.name(), 0});
    struct Leave {
      ~Leave() { running.pop_back(); }
      std::vector<Running>& running;
    } leave{running_};
    call.proceed();
    if (running_.back().kernels == 0) return;
    const Values results = top(call, schema.returns().size());
    const std::string& kernel = running_.back().kernel;
    Cost& cost = expected_[kernel];
    cost.bytes += arguments.bytes(results);
    cost.flops += flops(schema.name(), arguments.values(), results);
    ++calls_[kernel];
  }

  void see_kernel(const std::string& name) {
    if (!running_.empty() && runs(running_.back().name, name)) {
      running_.back().kernel = name;
      ++running_.back().kernels;
    } else {
      ++alone_[name];
    }
  }

  // A recurrent layer's backward pass is one kernel of its name that no operator calls. It has
  // twice the arithmetic and passes the layer's tensors twice.
  Costs expected() const {
    Costs costs = expected_;
    for (auto& [name, cost] : costs) {
      const auto found = alone_.find(name);
      if (found == alone_.end()) continue;
      EXPECT_EQ(found->second, calls_.at(name)) << name;
      cost.bytes *= 3;
      cost.flops *= 3;
    }
    return costs;
  }

 private:
  struct Running {
    std::string name;
    std::string kernel;
    int kernels;
  };

  // Kernels have the names of their operators, but for the CPU's fused attention, which stands for
  // a GPU's.
  static bool runs(const std::string& op, const std::string& kernel) {
    const std::string fused = "aten::_scaled_dot_product_flash_attention_for_cpu";
    if (!op.starts_with(fused)) return op == kernel;
    const std::string stage = op.substr(fused.size());
    return kernel == "aten::_scaled_dot_product_flash_attention" + stage ||
           kernel == "aten::_scaled_dot_product_efficient_attention" + stage;
  }

  static Values top(const OperatorCall& call, size_t count) {
    return Values(call.stack().end() - static_cast<ptrdiff_t>(count), call.stack().end());
  }

  std::vector<Running> running_;
  Costs expected_;
  std::map<std::string, int> calls_;
  std::map<std::string, int> alone_;
};

struct Counted {
  Costs expected;
  Costs actual;
};

Counted count(const OpCase& op_case) {
  const auto expectation = std::make_shared<Expectation>();
  Cluster cluster("1x1:h100,efficiency=ideal", {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    rank.device()->observe(
        [&](const char* name, int, int64_t, int64_t, bool) { expectation->see_kernel(name); });
    torch::manual_seed(1);
    const OperatorModeScope counting(expectation);
    Inputs inputs(rank.runtime().device());
    op_case.run(inputs);
  });
  Counted counted{.expected = expectation->expected()};
  for (const simulator::OperatorSummary& each : cluster.trace().operators) {
    const std::string& name = cluster.trace().names.at(each.name);
    // Copies to and from the host take the time of its link.
    if (each.calls == 0 || name.find("::") == std::string::npos) continue;
    counted.actual[name] = {each.bytes, each.flops};
  }
  return counted;
}

// Attention that the device has as one kernel and the CPU as several operators: 2 x 3 heads of nine
// queries and keys of 8 numbers, a number for each query, and perhaps a bias for each pair.
constexpr double kHeads = 4 * 2 * 3 * 9 * 8, kSums = 4 * 2 * 3 * 9, kBias = 4 * 2 * 3 * 9 * 9;
constexpr double kPairsProduct = 2.0 * 2 * 3 * 9 * 9 * 8;

const std::map<std::pair<std::string, std::string>, Cost>& sections() {
  static const auto& costs = *new std::map<std::pair<std::string, std::string>, Cost>{
      {{"attention_with_dropout", "aten::_scaled_dot_product_efficient_attention"},
       {4 * kHeads + kSums, 2 * kPairsProduct}},
      {{"attention_with_dropout", "aten::_scaled_dot_product_efficient_attention_backward"},
       {8 * kHeads + kSums, 5 * kPairsProduct}},
      {{"attention_with_bias", "aten::_scaled_dot_product_efficient_attention"},
       {4 * kHeads + kSums + kBias, 2 * kPairsProduct}},
      {{"attention_with_bias", "aten::_scaled_dot_product_efficient_attention_backward"},
       {8 * kHeads + kSums + 2 * kBias, 5 * kPairsProduct}},
  };
  return costs;
}

class OpTraffic : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpTraffic, IsWhatItsOperatorsReadAndWrite) {
  const Counted counted = count(GetParam());
  for (const auto& [name, actual] : counted.actual) {
    const auto section = sections().find({GetParam().name, name});
    if (section != sections().end()) {
      EXPECT_EQ(actual.flops, section->second.flops) << name;
      EXPECT_EQ(actual.bytes, section->second.bytes) << name;
      continue;
    }
    ASSERT_TRUE(counted.expected.contains(name)) << name;
    EXPECT_EQ(actual.flops, counted.expected.at(name).flops) << name;
    const auto worked_out = by_hand().find({GetParam().name, name});
    if (worked_out != by_hand().end()) {
      EXPECT_EQ(actual.bytes, worked_out->second) << name;
    } else {
      EXPECT_FALSE(indexers().contains(name)) << name << " has no expectation: " << actual.bytes;
      EXPECT_EQ(actual.bytes, counted.expected.at(name).bytes) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTraffic, ::testing::ValuesIn(all_op_cases()),
                         [](const ::testing::TestParamInfo<OpCase>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace accelerate::device_test
