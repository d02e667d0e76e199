// Views and rearrangements: their strides are the CPU's as well, and views share memory.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_views(OpCases& cases) {
  cases.differentiable("view", {{4, 6}}, [](const Tensors& x) {
    return Tensors{x[0].view({24}),        x[0].view({2, -1, 3}), x[0].reshape({3, 8}),
                   x[0].t().reshape({-1}), x[0].view_as(x[0]),    x[0].unflatten(1, {2, 3})};
  });
  cases.differentiable("flatten", {{2, 3, 4}}, [](const Tensors& x) {
    return Tensors{x[0].flatten(), x[0].flatten(1), x[0].ravel(), x[0].transpose(0, 2).flatten(1)};
  });
  cases.differentiable("transpose", {{2, 3, 4}}, [](const Tensors& x) {
    return Tensors{
        x[0].transpose(0, 2), x[0].permute({2, 0, 1}), x[0].mT(),
        x[0].movedim(0, 2),   x[0].swapaxes(0, 1),     x[0].permute({2, 0, 1}).contiguous()};
  });
  cases.differentiable("expand", {{3, 1}}, [](const Tensors& x) {
    return Tensors{x[0].expand({3, 5}), x[0].expand({2, -1, 4}) + 1,
                   at::broadcast_to(x[0], {2, 3, 3})};
  });
  cases.differentiable("squeeze", {{1, 3, 1, 4}}, [](const Tensors& x) {
    return Tensors{x[0].squeeze(), x[0].squeeze(0), x[0].squeeze(at::IntArrayRef({0, 2})),
                   x[0].unsqueeze(2)};
  });
  cases.differentiable("unfold", {{4, 12}}, [](const Tensors& x) { return x[0].unfold(1, 5, 3); });
  cases.differentiable("as_strided", {{4, 6}}, [](const Tensors& x) {
    return Tensors{x[0].as_strided({3, 3}, {2, 5}, 1), x[0].as_strided({4}, {0}, 3)};
  });
  cases.differentiable("diagonal", {{4, 6}}, [](const Tensors& x) {
    return Tensors{x[0].diagonal(), x[0].diagonal(1), x[0].diag(-1), at::diag_embed(x[0], 1),
                   x[0][0].diagflat()};
  });
  cases.differentiable("split", {{5, 6}}, [](const Tensors& x) {
    Tensors results = x[0].split(2);
    append(results, x[0].split_with_sizes({1, 3, 2}, 1));
    append(results, x[0].chunk(4, 1));
    append(results, x[0].tensor_split(3));
    append(results, x[0].unbind(1));
    append(results, x[0].hsplit(2));
    return results;
  });
  cases.add("view_of_dtype", [](Inputs& in) {
    const Tensor x = in.randn({4, 6});
    return Tensors{x.view(at::kInt), x.view(at::kByte), x.view(at::kHalf), x.view(at::kDouble)};
  });
  cases.add("views_share_memory", [](Inputs& in) {
    Tensor x = in.randn({4, 6});
    x.slice(1, 0, 2).add_(1);
    x.select(0, 1).mul_(3);
    x.t().slice(0, 3, 6, 2).fill_(0.5);
    x.diagonal().neg_();
    x.view({24}).slice(0, 20, 24).copy_(in.randn({4}));
    x.expand({2, 4, 6}).select(0, 1).sub_(1);
    return Tensors{x, in.number(x.t().data_ptr() == x.data_ptr()),
                   in.number(static_cast<double>(x.slice(1, 2).storage_offset()))};
  });
  cases.add("detach_and_alias", [](Inputs& in) {
    Tensor x = in.randn({4});
    Tensor alias = x.detach();
    alias.add_(1);
    return Tensors{x, alias, at::alias(x), x.data()};
  });
}

void add_joins(OpCases& cases) {
  cases.differentiable("cat", {{2, 3}, {4, 3}, {2, 5}}, [](const Tensors& x) {
    return Tensors{at::cat({x[0], x[1]}), at::cat({x[0], x[2]}, 1),
                   at::cat({x[0].t(), x[1].t()}, 1),
                   at::cat({x[0], at::empty({0}, x[0].options())})};
  });
  cases.add("cat_promotes", [](Inputs& in) {
    return at::cat({in.randn({2, 3}), in.integers({1, 3}, 0, 9), in.randn({2, 3}, at::kDouble)});
  });
  cases.differentiable("cat_channels_last", {{2, 3, 4, 5}, {2, 2, 4, 5}}, [](const Tensors& x) {
    return at::cat({x[0].contiguous(at::MemoryFormat::ChannelsLast),
                    x[1].contiguous(at::MemoryFormat::ChannelsLast)},
                   1);
  });
  cases.differentiable("stack", {{2, 3}, {2, 3}}, [](const Tensors& x) {
    return Tensors{at::stack({x[0], x[1]}),  at::stack({x[0], x[1]}, 2),
                   at::hstack({x[0], x[1]}), at::vstack({x[0], x[1]}),
                   at::dstack({x[0], x[1]}), at::column_stack({x[0], x[1]})};
  });
  cases.differentiable("block_diag_cartesian", {{2, 3}, {4}}, [](const Tensors& x) {
    return Tensors{at::block_diag({x[0], x[0]}), at::cartesian_prod({x[1], x[1]}),
                   at::combinations(x[1], 2)};
  });
  cases.differentiable("meshgrid", {{3}, {4}},
                       [](const Tensors& x) { return at::meshgrid({x[0], x[1]}, "ij"); });
  cases.differentiable("broadcast_tensors", {{3, 1}, {4}},
                       [](const Tensors& x) { return at::broadcast_tensors({x[0], x[1]}); });
}

void add_rearrangements(OpCases& cases) {
  cases.differentiable("flip_roll", {{4, 6}}, [](const Tensors& x) {
    return Tensors{x[0].flip({0, 1}),   x[0].fliplr(),  x[0].flipud(),
                   x[0].roll({2}, {1}), x[0].roll({3}), x[0].rot90()};
  });
  cases.differentiable("repeat", {{3, 2}}, [](const Tensors& x) {
    return Tensors{x[0].repeat({2, 3}), at::tile(x[0], {2, 1, 2}), x[0].repeat_interleave(3, 0),
                   x[0].repeat_interleave(2)};
  });
  cases.add("repeat_interleave_by_tensor", [](Inputs& in) {
    const Tensor repeats = in.indices({2, 0, 3});
    return with_gradients(in, {in.randn({3, 2})}, [&](const Tensors& x) {
      return Tensors{x[0].repeat_interleave(repeats, 0), at::repeat_interleave(repeats)};
    });
  });
  cases.differentiable("tril_triu", {{2, 5, 6}}, [](const Tensors& x) {
    return Tensors{x[0].tril(), x[0].triu(1), x[0].tril(-2)};
  });
  cases.differentiable("contiguous_clone", {{2, 3, 4, 5}}, [](const Tensors& x) {
    return Tensors{x[0].transpose(1, 2).contiguous(),
                   x[0].contiguous(at::MemoryFormat::ChannelsLast), x[0].transpose(1, 2).clone(),
                   x[0].permute({0, 2, 3, 1}).clone(at::MemoryFormat::Contiguous)};
  });
  cases.differentiable("channels_last_pointwise", {{2, 3, 4, 5}}, [](const Tensors& x) {
    const Tensor y = x[0].contiguous(at::MemoryFormat::ChannelsLast);
    return Tensors{y + 1, y.relu() * y, y.mean(Dims{2, 3}), y.to(at::kDouble)};
  });
  cases.add("empty_tensors", [](Inputs& in) {
    const Tensor x = in.randn({0, 3});
    return Tensors{x.sum(), x + 1, x.t(), x.mm(in.randn({3, 4})), in.randn({4, 0}).mm(x), x.sum(0)};
  });
  cases.add("scalar_tensors", [](Inputs& in) {
    const Tensor x = in.randn({});
    return Tensors{x + 1,   x.expand({3}),  x.view({1, 1}),
                   x.sum(), x.unsqueeze(0), at::stack({x, x})};
  });
}

}  // namespace

void add_shape_cases(OpCases& cases) {
  add_views(cases);
  add_joins(cases);
  add_rearrangements(cases);
}

}  // namespace accelerate::device_test
