// Convolutions, and how they turn images into columns.
#include <ATen/EmptyTensor.h>
#include <ATen/native/ConvUtils.h>
#include <c10/core/Storage.h>
#include <c10/core/SymIntArrayRef.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

using at::MemoryFormat;

struct Window {
  Dims stride, padding, dilation;
  bool transposed = false;
  Dims output_padding;
  int64_t groups = 1;
};

Window window(const Tensor& weight, const Dims& stride, const Dims& padding, const Dims& dilation,
              bool transposed, const Dims& output_padding, int64_t groups) {
  const int64_t dims = weight.dim() - 2;
  return {for_each_dim(stride, dims),         for_each_dim(padding, dims),
          for_each_dim(dilation, dims),       transposed,
          for_each_dim(output_padding, dims), groups};
}

// A CPU tensor without data, to ask LibTorch what it would do on the CPU.
Tensor on_cpu(const Tensor& tensor) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       c10::DataPtr(nullptr, at::kCPU), /*allocator=*/nullptr, /*resizable=*/false);
  Tensor shell = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  shell.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return shell;
}

// Which the CPU computes as images of height one.
bool is_line(const Tensor& weight) { return weight.dim() == 3; }

// The memory format in which the CPU convolves.
MemoryFormat format_of(const Tensor& input, const Tensor& weight, bool has_bias,
                       const Window& how) {
  const Dims bias_size{how.transposed ? weight.size(1) * how.groups : weight.size(0)};
  const at::native::ConvBackend backend = at::native::select_conv_backend(
      on_cpu(is_line(weight) ? contiguous_like(input) : input), on_cpu(weight), /*bias=*/{},
      c10::fromIntArrayRefSlow(how.stride), c10::fromIntArrayRefSlow(how.padding),
      c10::fromIntArrayRefSlow(how.dilation), how.transposed,
      c10::fromIntArrayRefSlow(how.output_padding), how.groups,
      has_bias ? at::OptionalSymIntArrayRef(c10::fromIntArrayRefSlow(bias_size)) : std::nullopt);
  if (is_line(weight)) return MemoryFormat::Contiguous;
  return at::native::_determine_backend_memory_format(on_cpu(input), on_cpu(weight), backend);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const Tensor& bias,
                   const Dims& stride, const Dims& padding, const Dims& dilation, bool transposed,
                   const Dims& output_padding, int64_t groups) {
  const Window how = window(weight, stride, padding, dilation, transposed, output_padding, groups);
  const MemoryFormat format = format_of(input, weight, bias.defined(), how);
  const std::vector<int64_t> sizes =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), how.padding,
                                               how.output_padding, how.stride, how.dilation, groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), how.padding,
                                                how.stride, how.dilation);
  return dense(sizes, input.scalar_type(), format);
}

Results convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                             const std::optional<Dims>& bias_size, const Dims& stride,
                             const Dims& padding, const Dims& dilation, bool transposed,
                             const Dims& output_padding, int64_t groups,
                             std::array<bool, 3> wanted) {
  const Window how = window(weight, stride, padding, dilation, transposed, output_padding, groups);
  const MemoryFormat format = format_of(input, weight, bias_size.has_value(), how);
  return {wanted[0] ? dense(input.sizes(), input.scalar_type(), format) : Tensor(),
          wanted[1] ? dense(weight.sizes(), weight.scalar_type(), format) : Tensor(),
          wanted[2] ? dense({gradient.size(1)}, gradient.scalar_type()) : Tensor()};
}

// ---- The kernels for the CPU alone.

MemoryFormat slow_format(const Tensor& self, const Tensor& weight) {
  return at::native::thnn_conv_use_channels_last(on_cpu(self), on_cpu(weight))
             ? MemoryFormat::ChannelsLast
             : MemoryFormat::Contiguous;
}

// `self` may be a single image.
Dims slow_sizes(const Tensor& self, const Tensor& weight, const Dims& stride, const Dims& padding,
                const Dims& dilation) {
  const bool single = self.dim() < weight.dim();
  const Tensor batch = single ? self.unsqueeze(0) : self;
  const std::vector<int64_t> sizes =
      at::native::conv_output_size(batch.sizes(), weight.sizes(), padding, stride, dilation);
  return Dims(sizes.begin() + (single ? 1 : 0), sizes.end());
}

Tensor slow_conv2d(const Tensor& self, const Tensor& weight, const Dims&, const Tensor&,
                   const Dims& stride, const Dims& padding) {
  return dense(slow_sizes(self, weight, stride, padding, {1, 1}), self.scalar_type(),
               slow_format(self, weight));
}
Results slow_conv2d_backward(const Tensor& gradient, const Tensor& self, const Tensor& weight,
                             const Dims&, const Dims&, const Dims&, std::array<bool, 3> wanted) {
  const MemoryFormat format = slow_format(self, weight);
  return {wanted[0] ? dense(self.sizes(), gradient.scalar_type(), format) : Tensor(),
          wanted[1] ? dense(weight.sizes(), gradient.scalar_type(), format) : Tensor(),
          wanted[2] ? dense({gradient.size(1)}, gradient.scalar_type()) : Tensor()};
}
Results slow_conv2d_whole_backward(const Tensor& gradient, const Tensor& self,
                                   const Tensor& weight) {
  return slow_conv2d_backward(gradient, self, weight, {}, {}, {}, {true, true, true});
}
Tensor slow_conv3d(const Tensor& self, const Tensor& weight, const Dims&, const Tensor&,
                   const Dims& stride, const Dims& padding) {
  return dense(slow_sizes(self, weight, stride, padding, {1, 1, 1}), self.scalar_type());
}
Tensor slow_conv_dilated2d(const Tensor& self, const Tensor& weight, const Dims&, const Tensor&,
                           const Dims& stride, const Dims& padding, const Dims& dilation) {
  const bool single = self.dim() < weight.dim();
  return dense(slow_sizes(self, weight, stride, padding, dilation), self.scalar_type(),
               single ? MemoryFormat::Contiguous : slow_format(self, weight));
}
Tensor slow_conv_dilated3d(const Tensor& self, const Tensor& weight, const Dims&, const Tensor&,
                           const Dims& stride, const Dims& padding, const Dims& dilation) {
  return dense(slow_sizes(self, weight, stride, padding, dilation), self.scalar_type());
}
Tensor slow_conv_transpose3d(const Tensor& self, const Tensor& weight, const Dims&, const Tensor&,
                             const Dims& stride, const Dims& padding, const Dims& output_padding,
                             const Dims& dilation) {
  const bool single = self.dim() < weight.dim();
  const Tensor batch = single ? self.unsqueeze(0) : self;
  const std::vector<int64_t> sizes = at::native::conv_input_size(
      batch.sizes(), weight.sizes(), padding, output_padding, stride, dilation, /*groups=*/1);
  return dense(at::IntArrayRef(sizes).slice(single ? 1 : 0), self.scalar_type());
}

// ---- Columns.

Tensor im2col(const Tensor& self, const Dims& kernel, const Dims& dilation, const Dims& padding,
              const Dims& stride) {
  const int64_t last = self.dim() - 1;
  int64_t num_columns = 1;
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t extent = self.size(last - 1 + i) + 2 * padding[i];
    num_columns *= (extent - dilation[i] * (kernel[i] - 1) - 1) / stride[i] + 1;
  }
  const int64_t rows = self.size(last - 2) * kernel[0] * kernel[1];
  return self.dim() == 4 ? dense({self.size(0), rows, num_columns}, self.scalar_type())
                         : dense({rows, num_columns}, self.scalar_type());
}
Tensor col2im(const Tensor& self, const Dims& size, const Dims& kernel) {
  Dims sizes(self.sizes().slice(0, self.dim() - 2));
  sizes.push_back(self.size(-2) / (kernel[0] * kernel[1]));
  sizes.append(size.begin(), size.end());
  Tensor image = contiguous_like(self);  // the kernel resizes a tensor like the columns
  return image.resize_(sizes);
}

}  // namespace

Rules convolution_rules() {
  return {
      {"convolution", by<convolution>},
      {"convolution_backward", by<convolution_backward>},
      {"_slow_conv2d_forward", by<slow_conv2d>},
      {"_slow_conv2d_backward.output_mask", by<slow_conv2d_backward>},
      {"_slow_conv2d_backward.grad_input", by<slow_conv2d_whole_backward>},
      {"slow_conv3d_forward", by<slow_conv3d>},
      {"slow_conv_dilated2d", by<slow_conv_dilated2d>},
      {"slow_conv_dilated3d", by<slow_conv_dilated3d>},
      {"slow_conv_transpose3d", by<slow_conv_transpose3d>},
      {"im2col", by<im2col>},
      {"col2im", by<col2im>},
  };
}

}  // namespace accelerate::simulator::shape_rules
