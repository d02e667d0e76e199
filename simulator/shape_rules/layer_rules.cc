// Layers of models: normalisation, pooling, padding, attention, bags of embeddings.
#include <ATen/OpMathType.h>
#include <ATen/native/Pool.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

Tensor second_in_format(const Tensor&, const Tensor& self) { return formatted_like(self); }

// ---- Normalisation.

Results batch_norm_of(const Tensor& input, std::initializer_list<Tensor> parameters, bool train) {
  const int64_t count = train ? input.size(1) : 0;
  const Dtype dtype = parameter_dtype(input, parameters);
  return {formatted_like(input), dense({count}, dtype), dense({count}, dtype)};
}
Results batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias,
                   const Tensor& mean, const Tensor& variance, bool train) {
  return batch_norm_of(input, {weight, bias, mean, variance}, train);
}
Results batch_norm_without_statistics(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                      bool train) {
  return batch_norm_of(input, {weight, bias}, train);
}
Results batch_norm_with_update(const Tensor& input, const Tensor& weight, const Tensor& bias,
                               const Tensor& mean, const Tensor& variance) {
  Results results = batch_norm_of(input, {weight, bias, mean, variance}, /*train=*/true);
  results.push_back(dense({0}, at::kByte));
  return results;
}
Results batch_norm_statistics(const Tensor& input, const Tensor& mean, const Tensor& variance) {
  const Tensor statistic = dense({input.size(1)}, parameter_dtype(input, {mean, variance}));
  return {statistic, contiguous_like(statistic)};
}
Results batch_norm_backward(const Tensor&, const Tensor& input, const Tensor& weight,
                            const Tensor& mean, const Tensor& variance, const Tensor& saved_mean,
                            const Tensor& saved_deviation, bool, double,
                            std::array<bool, 3> wanted) {
  const Dtype dtype = parameter_dtype(input, {weight, mean, variance, saved_mean, saved_deviation});
  return {wanted[0] ? formatted_like(input) : Tensor(),
          wanted[1] ? dense({input.size(1)}, dtype) : Tensor(),
          wanted[2] ? dense({input.size(1)}, dtype) : Tensor()};
}

// A mean and a deviation for each row; their sizes keep the dims of the row, with one element.
Results layer_norm(const Tensor& input, const Dims& row, const Tensor& weight, const Tensor& bias) {
  Dims sizes(input.sizes());
  std::fill(sizes.end() - static_cast<ptrdiff_t>(row.size()), sizes.end(), 1);
  const Dtype dtype = parameter_dtype(input, {weight, bias});
  return {contiguous_like(input), dense(sizes, dtype), dense(sizes, dtype)};
}
Results layer_norm_backward(const Tensor&, const Tensor& input, const Dims&, const Tensor&,
                            const Tensor&, const Tensor& weight, const Tensor& bias,
                            std::array<bool, 3> wanted) {
  return {wanted[0] ? contiguous_like(input) : Tensor(),
          wanted[1] ? contiguous_like(weight) : Tensor(),
          wanted[2] ? contiguous_like(bias.defined() ? bias : weight) : Tensor()};
}

Results group_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, int64_t batch,
                   int64_t, int64_t, int64_t groups) {
  const Dtype dtype = parameter_dtype(input, {weight, bias});
  return {formatted_like(input), dense({batch, groups}, dtype), dense({batch, groups}, dtype)};
}
Results group_norm_backward(const Tensor&, const Tensor& input, const Tensor&, const Tensor&,
                            const Tensor& weight, int64_t, int64_t, int64_t, int64_t,
                            std::array<bool, 3> wanted) {
  return {wanted[0] ? formatted_like(input) : Tensor(),
          wanted[1] ? contiguous_like(weight) : Tensor(),
          wanted[2] ? contiguous_like(weight) : Tensor()};
}

Results weight_norm(const Tensor& direction, const Tensor& magnitude) {
  const Dtype dtype =
      magnitude.scalar_type() == at::kBFloat16 ? at::kFloat : magnitude.scalar_type();
  return {contiguous_like(direction), like(magnitude, dtype)};
}
Results weight_norm_backward(const Tensor&, const Tensor& direction, const Tensor& magnitude) {
  return {contiguous_like(direction), contiguous_like(magnitude)};
}

// ---- Pooling. The leading dims are a batch, if there is one, and channels.

Tensor pooled(const Tensor& self, const Dims& size) {
  Dims sizes(self.sizes().slice(0, self.dim() - size.size()));
  sizes.append(size.begin(), size.end());
  return dense(sizes, self.scalar_type(),
               self.dim() == static_cast<int64_t>(size.size()) + 2 ? self.suggest_memory_format()
                                                                   : at::MemoryFormat::Contiguous);
}
Tensor max_unpooled2d(const Tensor& self, const Tensor&, const Dims& size) {
  return pooled(self, size);
}
Tensor pooled_contiguous(const Tensor& self, const Dims& size) {
  return contiguous_like(pooled(self, size));
}
Tensor max_unpooled3d(const Tensor& self, const Tensor&, const Dims& size) {
  return pooled_contiguous(self, size);
}

Results max_pooled3d(const Tensor& self, const Dims& kernel, const Dims& stride,
                     const Dims& padding, const Dims& dilation, bool ceil) {
  const Dims kernels = for_each_dim(kernel, 3);
  const Dims strides = stride.empty() ? kernels : for_each_dim(stride, 3);
  const Dims paddings = for_each_dim(padding, 3);
  const Dims dilations = for_each_dim(dilation, 3);
  Dims sizes;
  for (int64_t i = 0; i < 3; ++i) {
    sizes.push_back(at::native::pooling_output_shape(self.size(self.dim() - 3 + i), kernels[i],
                                                     paddings[i], strides[i], dilations[i], ceil));
  }
  const Tensor values = pooled(self, sizes);
  return {values, like(values, at::kLong)};
}

// `padding`: left, right, top, bottom.
Tensor padded(const Tensor& self, const Dims& padding) {
  const Dims size{self.size(-2) + padding[2] + padding[3], self.size(-1) + padding[0] + padding[1]};
  return pooled(self, size);
}

Tensor grid_sampled(const Tensor& input, const Tensor& grid) {
  Dims sizes{input.size(0), input.size(1)};
  const at::IntArrayRef size = grid.sizes().slice(1, grid.dim() - 2);
  sizes.append(size.begin(), size.end());
  return dense(sizes, input.scalar_type());
}
Results grid_sampled_backward(const Tensor&, const Tensor& input, const Tensor& grid, int64_t,
                              int64_t, bool, std::array<bool, 2> wanted) {
  return {wanted[0] ? contiguous_like(input) : Tensor(), contiguous_like(grid)};
}

// ---- Attention. Tensors are [batch, heads, positions, elements]; in the memory of gradients and
// sums, the heads of a position lie side by side.

Tensor heads_side_by_side(const Tensor& tensor) {
  return contiguous_like(tensor.transpose(1, 2)).transpose(1, 2);
}
Results attention(const Tensor& query) {
  const Dtype sums = at::toOpMathType(query.scalar_type());
  return {like(query), dense({query.size(0), query.size(2), query.size(1)}, sums).transpose(1, 2)};
}
Results attention_backward(const Tensor&, const Tensor& query, const Tensor& key,
                           const Tensor& value) {
  return {heads_side_by_side(query), heads_side_by_side(key), heads_side_by_side(value)};
}

// ---- Bags of embeddings.

constexpr int64_t kSum = 0;
constexpr int64_t kMax = 2;

// The kernel shrinks the table of bags by one, which keeps its memory. It has none if it sums whole
// rows without looking at them one by one.
template <bool requires_gradient>
Results embedding_bag(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool,
                      int64_t mode, bool, const Tensor& sample_weights, bool include_last_offset,
                      int64_t padding_index) {
  const int64_t num_bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  const Dtype positions = c10::promoteTypes(indices.scalar_type(), offsets.scalar_type());
  const bool fast = weight.scalar_type() != at::kDouble && weight.stride(1) == 1 &&
                    padding_index < 0 &&
                    (!sample_weights.defined() || sample_weights.stride(0) == 1);
  Tensor bag_of_index = dense({0}, positions);
  if (mode != kSum || !fast) {
    bag_of_index.resize_({indices.size(0) + 1});
    bag_of_index.resize_({indices.size(0)});
  }
  const Tensor bag_sizes = dense({requires_gradient || mode != kSum ? num_bags : 0}, positions);
  const Tensor maxima =
      mode == kMax ? dense({num_bags, weight.size(1)}, positions) : contiguous_like(bag_sizes);
  return {dense({num_bags, weight.size(1)}, weight.scalar_type()), bag_of_index, bag_sizes, maxima};
}
Tensor embedding_bag_dense_backward(const Tensor& gradient, const Tensor&, const Tensor&,
                                    const Tensor&, const Tensor&, int64_t num_weights) {
  return dense({num_weights, gradient.size(1)}, gradient.scalar_type());
}
Tensor embedding_bag_backward(const Tensor& gradient, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, int64_t num_weights, bool, int64_t,
                              bool sparse) {
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse,
                              "aten::_embedding_bag_backward: a sparse gradient has as "
                              "many elements as its values say, which numerics = shapes does not "
                              "compute: use sparse = false");
  return dense({num_weights, gradient.size(1)}, gradient.scalar_type());
}
Tensor sample_weights_gradient(const Tensor& gradient, const Tensor&, const Tensor& indices) {
  return dense({indices.size(0)}, gradient.scalar_type());
}

}  // namespace

Rules layer_rules() {
  return {
      {"native_batch_norm _native_batch_norm_legit", by<batch_norm>},
      {"_native_batch_norm_legit.no_stats", by<batch_norm_without_statistics>},
      {"_batch_norm_with_update", by<batch_norm_with_update>},
      {"batch_norm_update_stats", by<batch_norm_statistics>},
      {"native_batch_norm_backward batch_norm_backward", by<batch_norm_backward>},
      {"native_layer_norm", by<layer_norm>},
      {"native_layer_norm_backward", by<layer_norm_backward>},
      {"native_group_norm", by<group_norm>},
      {"native_group_norm_backward", by<group_norm_backward>},
      {"_weight_norm_interface", by<weight_norm>},
      {"_weight_norm_interface_backward", by<weight_norm_backward>},

      {"max_pool3d_with_indices", by<max_pooled3d>},
      {"max_pool3d_with_indices_backward _adaptive_avg_pool2d_backward", by<second_in_format>},
      {"fractional_max_pool3d_backward _adaptive_avg_pool3d_backward "
       "adaptive_avg_pool3d_backward.grad_input",
       by<second_contiguous>},
      {"_adaptive_avg_pool2d adaptive_avg_pool2d.out", by<pooled>},
      {"_adaptive_avg_pool3d adaptive_avg_pool3d.out", by<pooled_contiguous>},
      {"max_unpool2d", by<max_unpooled2d>},
      {"max_unpool3d", by<max_unpooled3d>},

      {"reflection_pad2d", by<padded>},
      {"reflection_pad2d_backward replication_pad2d_backward replication_pad3d_backward",
       by<second_in_format>},
      {"grid_sampler_2d grid_sampler_3d", by<grid_sampled>},
      {"grid_sampler_2d_backward grid_sampler_3d_backward", by<grid_sampled_backward>},

      {"_scaled_dot_product_flash_attention_for_cpu", by<attention>},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", by<attention_backward>},
      {"_masked_softmax _masked_softmax_backward", by<in_order>},

      {"_embedding_bag", by<&embedding_bag</*requires_gradient=*/true>>},
      {"_embedding_bag_forward_only", by<&embedding_bag</*requires_gradient=*/false>>},
      {"_embedding_bag_backward", by<embedding_bag_backward>},
      {"_embedding_bag_dense_backward", by<embedding_bag_dense_backward>},
      {"_embedding_bag_per_sample_weights_backward", by<sample_weights_gradient>},
  };
}

}  // namespace accelerate::simulator::shape_rules
