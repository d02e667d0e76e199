// Picking, placing and rearranging elements, and tensors out of nothing.
#include <ATen/WrapDimUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/cat.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  Dims sizes(self.sizes());
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return dense(sizes, self.scalar_type());
}
Tensor take(const Tensor& self, const Tensor& index) {
  return dense(index.sizes(), self.scalar_type());
}
Tensor nonzero_static(const Tensor& self, int64_t size) {
  return dense({size, self.dim()}, at::kLong);
}
Tensor narrow_copy(const Tensor& self, int64_t dim, int64_t, int64_t length) {
  Dims sizes(self.sizes());
  sizes[at::maybe_wrap_dim(dim, self.dim())] = length;
  return dense(sizes, self.scalar_type());
}

Dtype position_dtype(bool as_int32) { return as_int32 ? at::kInt : at::kLong; }
Tensor searchsorted(const Tensor&, const Tensor& self, bool as_int32) {
  return dense(self.sizes(), position_dtype(as_int32));
}
Tensor searchsorted_number(const Tensor&, const at::Scalar&, bool as_int32) {
  return dense({}, position_dtype(as_int32));
}
Tensor bucketize(const Tensor& self, const Tensor&, bool as_int32) {
  return dense(self.sizes(), position_dtype(as_int32));
}
Tensor bucketize_number(const at::Scalar&, const Tensor&, bool as_int32) {
  return dense({}, position_dtype(as_int32));
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> size) {
  if (!size) refuse("aten::repeat_interleave");
  return dense({*size}, repeats.scalar_type());
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) parts.push_back(tensor.unsqueeze(dim));
  return at::cat(parts, at::maybe_wrap_dim(dim, parts[0].dim()));
}
Tensor roll(const Tensor& self, const Dims&, const Dims& dims) {
  if (self.numel() == 0) return like(self);
  return dims.empty() ? contiguous_like(self) : formatted_like(self);
}
Tensor unfold_backward(const Tensor& gradient, const Dims& sizes) {
  return dense(sizes, gradient.scalar_type());
}

Tensor segment_reduce(const Tensor& data, const std::string&, const Tensor& lengths, const Tensor&,
                      const Tensor& offsets, int64_t axis) {
  Dims sizes(data.sizes());
  axis = at::maybe_wrap_dim(axis, data.dim());
  sizes[axis] = lengths.defined() ? lengths.size(axis) : offsets.size(axis) - 1;
  return dense(sizes, data.scalar_type());
}
Tensor segment_reduce_backward(const Tensor& gradient, const Tensor&, const Tensor& data) {
  return dense(data.sizes(), gradient.scalar_type());
}

Tensor multinomial(const Tensor& self, int64_t num_samples) {
  return self.dim() == 1 ? dense({num_samples}, at::kLong)
                         : dense({self.size(0), num_samples}, at::kLong);
}
Tensor randperm(int64_t count) { return dense({count}, at::kLong); }
Tensor tril_indices(int64_t rows, int64_t columns, int64_t offset, std::optional<Dtype> dtype) {
  return dense({2, at::native::get_tril_size(rows, columns, offset)}, dtype.value_or(at::kLong));
}
Tensor triu_indices(int64_t rows, int64_t columns, int64_t offset, std::optional<Dtype> dtype) {
  return dense({2, rows * columns - at::native::get_tril_size(rows, columns, offset - 1)},
               dtype.value_or(at::kLong));
}
// A periodic window is a longer one without its last number.
Tensor window_or_period(int64_t length, bool periodic, std::optional<Dtype> dtype) {
  const bool longer = periodic && length > 1;
  const Tensor window = dense({length + (longer ? 1 : 0)},
                              dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype())));
  return longer ? window.narrow(0, 0, length) : window;
}
Tensor window(int64_t length, std::optional<Dtype> dtype) {
  return window_or_period(length, /*periodic=*/true, dtype);
}
Tensor window_with_beta(int64_t length, bool periodic, double, std::optional<Dtype> dtype) {
  return window_or_period(length, periodic, dtype);
}

}  // namespace

Rules indexing_rules() {
  return {
      {"index_select", by<index_select>},
      {"take", by<take>},
      {"nonzero masked_select", by_refusal},
      {"nonzero_static", by<nonzero_static>},
      {"narrow_copy", by<narrow_copy>},
      {"searchsorted.Tensor", by<searchsorted>},
      {"searchsorted.Scalar", by<searchsorted_number>},
      {"bucketize.Tensor", by<bucketize>},
      {"bucketize.Scalar", by<bucketize_number>},
      {"repeat_interleave.Tensor", by<repeat_interleave>},
      {"channel_shuffle", by<formatted_like>},
      {"_stack", by<stack>},
      {"flip", by<in_order>},
      {"roll", by<roll>},
      {"unfold_backward", by<unfold_backward>},
      {"segment_reduce", by<segment_reduce>},
      {"_segment_reduce_backward", by<segment_reduce_backward>},
      {"multinomial", by<multinomial>},
      {"randperm.generator_out", by<randperm>},
      {"tril_indices", by<tril_indices>},
      {"triu_indices", by<triu_indices>},
      {"kaiser_window", by<window>},
      {"kaiser_window.periodic", by<window_or_period>},
      {"kaiser_window.beta", by<window_with_beta>},
  };
}

}  // namespace accelerate::simulator::shape_rules
