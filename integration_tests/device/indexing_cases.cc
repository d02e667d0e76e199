// Picking and placing elements: by index, by mask, by position.
#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

using at::indexing::Ellipsis;
using at::indexing::None;
using at::indexing::Slice;
using OptionalTensors = c10::List<std::optional<Tensor>>;

OptionalTensors at_indices(std::initializer_list<std::optional<Tensor>> indices) {
  return OptionalTensors(indices);
}

// Cases with a normally distributed [6, 8] tensor, a gradient, and indices below six.
template <typename Function>
void add_indexed(OpCases& cases, const char* name, Function function) {
  cases.add(name, [function](Inputs& in) {
    const Tensor rows = in.integers({5}, 0, 6);
    return with_gradients(in, {in.randn({6, 8}), in.randn({5, 8})},
                          [&](const Tensors& x) { return as_list(function(x[0], x[1], rows)); });
  });
}

void add_reading(OpCases& cases) {
  cases.differentiable("basic_indexing", {{6, 8, 3}}, [](const Tensors& x) {
    return Tensors{x[0][2],
                   x[0].index({Slice(1, 5, 2)}),
                   x[0].index({Ellipsis, 1}),
                   x[0].index({None, 3, Slice(), 0}),
                   x[0].select(1, 4),
                   x[0].narrow(1, 2, 3)};
  });
  add_indexed(cases, "index", [](const Tensor& x, const Tensor&, const Tensor& rows) {
    return Tensors{at::index(x, at_indices({rows})), at::index(x, at_indices({std::nullopt, rows})),
                   at::index(x, at_indices({rows, rows})),
                   at::index(x, at_indices({rows.view({5, 1}), rows.view({1, 5})})),
                   x.index({rows, 2})};
  });
  add_indexed(cases, "index_by_mask", [](const Tensor& x, const Tensor&, const Tensor&) {
    return Tensors{x.index({x > 0}), x.index({x.select(1, 0) > 0}), x.masked_select(x.lt(0.5))};
  });
  add_indexed(cases, "index_select", [](const Tensor& x, const Tensor&, const Tensor& rows) {
    return Tensors{at::index_select(x, 0, rows), at::index_select(x, 1, rows)};
  });
  cases.add("gather", [](Inputs& in) {
    const Tensor index = in.integers({4, 8}, 0, 6);
    return with_gradients(in, {in.randn({6, 8})}, [&](const Tensors& x) {
      return Tensors{at::gather(x[0], 0, index), at::take_along_dim(x[0], index, 0)};
    });
  });
  cases.add("take", [](Inputs& in) {
    const Tensor index = in.integers({3, 4}, 0, 48);
    return with_gradients(in, {in.randn({6, 8})},
                          [&](const Tensors& x) { return as_list(at::take(x[0], index)); });
  });
  cases.add("nonzero", [](Inputs& in) {
    const Tensor x = in.integers({4, 6}, 0, 3);
    Tensors results{at::nonzero(x), at::argwhere(x)};
    append(results, at::where(x > 1));
    append(results, at::nonzero_numpy(x));
    return results;
  });
  cases.add("index_of_integers", [](Inputs& in) {
    const Tensor x = in.integers({6, 8}, 0, 99);
    const Tensor rows = in.integers({5}, -6, 6);
    return Tensors{x.index({rows}), x.index({x > 50}), in.booleans({6, 8}).index({rows})};
  });
}

void add_placing(OpCases& cases) {
  add_indexed(cases, "index_put", [](const Tensor& x, const Tensor& y, const Tensor& rows) {
    return Tensors{at::index_put(x, at_indices({rows}), y, /*accumulate=*/true),
                   at::index_put(x, at_indices({at::arange(5, rows.options())}), y),
                   at::index_put(x, at_indices({x > 0}), y[0][0])};
  });
  cases.add("index_put_in_place", [](Inputs& in) {
    Tensor x = in.randn({6, 8});
    x.index_put_({Slice(0, 2)}, 7.0);
    x.index_put_({in.indices({3, 5})}, in.randn({2, 8}));
    x.index_put_({x > 1}, 0.5);
    x.index({Slice(), Slice(4, 6)}).fill_(-2);
    return x;
  });
  add_indexed(cases, "index_add", [](const Tensor& x, const Tensor& y, const Tensor& rows) {
    return at::index_add(x, 0, rows, y, 0.5);
  });
  add_indexed(cases, "index_copy", [](const Tensor& x, const Tensor& y, const Tensor& rows) {
    return at::index_copy(x, 0, at::arange(5, rows.options()), y);
  });
  add_indexed(cases, "index_fill", [](const Tensor& x, const Tensor& y, const Tensor& rows) {
    return Tensors{at::index_fill(x, 0, rows, 3), at::index_fill(x, 1, rows, y[0][0])};
  });
  add_indexed(cases, "index_reduce", [](const Tensor& x, const Tensor& y, const Tensor& rows) {
    return Tensors{at::index_reduce(x, 0, rows, y, "mean"),
                   at::index_reduce(x, 0, rows, y, "amax")};
  });
  cases.add("scatter", [](Inputs& in) {
    // Each column's indices differ: the order of writes does not matter.
    const Tensor index = at::arange(4, in.options(at::kLong)).view({4, 1}).expand({4, 8});
    return with_gradients(in, {in.randn({6, 8}), in.randn({4, 8})}, [&](const Tensors& x) {
      return Tensors{at::scatter(x[0], 0, index, x[1]), at::scatter(x[0], 0, index, 1.5)};
    });
  });
  cases.add("scatter_add", [](Inputs& in) {
    const Tensor index = in.integers({4, 8}, 0, 6);
    return with_gradients(in, {in.randn({6, 8}), in.randn({4, 8})}, [&](const Tensors& x) {
      return as_list(at::scatter_add(x[0], 0, index, x[1]));
    });
  });
  cases.add("scatter_reduce", [](Inputs& in) {
    const Tensor index = in.integers({4, 8}, 0, 6);
    Tensors results;
    for (const char* reduction : {"sum", "prod", "mean", "amax", "amin"}) {
      append(results,
             with_gradients(in, {in.randn({6, 8}), in.randn({4, 8})}, [&](const Tensors& x) {
               return as_list(at::scatter_reduce(x[0], 0, index, x[1], reduction));
             }));
    }
    return results;
  });
  add_indexed(cases, "masked_fill", [](const Tensor& x, const Tensor& y, const Tensor&) {
    return Tensors{at::masked_fill(x, x > 0, 2.5), at::masked_fill(x, x > 0, y[0][0])};
  });
  cases.add("masked_scatter", [](Inputs& in) {
    const Tensor mask = in.booleans({6, 8});
    return with_gradients(in, {in.randn({6, 8}), in.randn({48})}, [&](const Tensors& x) {
      return as_list(at::masked_scatter(x[0], mask, x[1]));
    });
  });
  cases.add("put", [](Inputs& in) {
    const Tensor index = in.integers({5}, 0, 48);
    return with_gradients(in, {in.randn({6, 8}), in.randn({5})}, [&](const Tensors& x) {
      return as_list(at::put(x[0], index, x[1], /*accumulate=*/true));
    });
  });
  cases.differentiable("view_scatters", {{6, 8}, {6}, {2, 8}, {6}}, [](const Tensors& x) {
    return Tensors{at::select_scatter(x[0], x[1], 1, 3), at::slice_scatter(x[0], x[2], 0, 1, 3),
                   at::diagonal_scatter(x[0], x[3])};
  });
  cases.differentiable("segment_reduce", {{9, 3}}, [](const Tensors& x) {
    const Tensor lengths = at::tensor({4, 2, 3}, at::kLong).to(x[0].device());
    return Tensors{at::segment_reduce(x[0], "sum", lengths),
                   at::segment_reduce(x[0], "max", lengths)};
  });
}

}  // namespace

void add_indexing_cases(OpCases& cases) {
  add_reading(cases);
  add_placing(cases);
}

}  // namespace accelerate::device_test
