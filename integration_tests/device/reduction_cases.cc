// Operators that make few numbers of many: reductions, scans, sorting and searching.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_sums(OpCases& cases) {
  cases.add("sum", [](Inputs& in) {
    Tensors results;
    for (at::ScalarType dtype :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kInt, at::kBool}) {
      const Tensor x = in.integers({7, 5, 33}, 0, 50, dtype);
      append(results,
             {x.sum(), x.sum(1), x.sum(Dims{0, 2}, /*keepdim=*/true), x.transpose(0, 2).sum(0),
              x.sum(Dims{-1}, false, at::kDouble), x.slice(0, 0, 0).sum(0)});
    }
    return results;
  });
  cases.differentiable("sum_gradient", {{4, 5, 6}}, [](const Tensors& x) {
    return Tensors{x[0].sum(), x[0].sum(Dims{0, 2}), x[0].sum(Dims{1}, true),
                   at::nansum(x[0], Dims{1})};
  });
  cases.differentiable("mean", {{4, 5, 6}}, [](const Tensors& x) {
    return Tensors{x[0].mean(), x[0].mean(Dims{0, 2}), x[0].mean(Dims{1}, true),
                   at::nanmean(x[0], Dims{1})};
  });
  cases.differentiable("prod", {{4, 5}}, [](const Tensors& x) {
    return Tensors{x[0].prod(), x[0].prod(1), x[0].prod(0, true)};
  });
  cases.differentiable("var", {{6, 11}}, [](const Tensors& x) {
    return Tensors{x[0].var(), x[0].var(Dims{1}, /*unbiased=*/false), x[0].std(Dims{0}),
                   x[0].std()};
  });
  cases.differentiable("var_mean", {{6, 11}}, [](const Tensors& x) {
    Tensors results = as_list(at::var_mean(x[0], Dims{1}));
    append(results, as_list(at::std_mean(x[0], Dims{0}, false, true)));
    return results;
  });
  cases.differentiable("norm", {{6, 11}}, [](const Tensors& x) {
    return Tensors{x[0].norm(), x[0].norm(1), at::norm(x[0], 3, Dims{1}),
                   at::norm(x[0], 2, Dims{0}, true), at::frobenius_norm(x[0], Dims{0, 1})};
  });
  cases.differentiable("vector_norm", {{6, 11}}, [](const Tensors& x) {
    Tensors results;
    for (double order : {0.5, 1.0, 2.0, 3.0, double(INFINITY), -double(INFINITY)}) {
      results.push_back(at::linalg_vector_norm(x[0], order, Dims{1}));
    }
    return results;
  });
  cases.differentiable("logsumexp", {{6, 11}}, [](const Tensors& x) {
    return Tensors{at::logsumexp(x[0], Dims{1}), at::logsumexp(x[0], Dims{0, 1}, true)};
  });
  cases.differentiable("logcumsumexp", {{6, 11}},
                       [](const Tensors& x) { return at::logcumsumexp(x[0], 1); });
  cases.differentiable("dist", {{6, 11}, {6, 11}},
                       [](const Tensors& x) { return at::dist(x[0], x[1], 3); });
  cases.differentiable("trace", {{6, 6}}, [](const Tensors& x) { return at::trace(x[0]); });
  cases.add("count_nonzero", [](Inputs& in) {
    const Tensor x = in.integers({6, 7}, 0, 3);
    return Tensors{at::count_nonzero(x), at::count_nonzero(x, Dims{1})};
  });
  cases.add("any_all", [](Inputs& in) {
    const Tensor x = in.booleans({6, 3});
    const Tensor y = in.integers({6, 3}, 0, 2);
    return Tensors{x.any(), x.all(), x.any(1), x.all(0, true), y.any(), y.all(1), at::all(y > -1)};
  });
}

void add_extremes(OpCases& cases) {
  cases.differentiable("max_min", {{6, 11}}, [](const Tensors& x) {
    Tensors results{x[0].max(), x[0].min(), x[0].amax(Dims{0, 1}), x[0].amin(Dims{1}, true)};
    append(results, as_list(x[0].max(1)));
    append(results, as_list(x[0].min(0, true)));
    return results;
  });
  cases.add("max_min_of_integers", [](Inputs& in) {
    const Tensor x = in.integers({6, 11}, -9, 9, at::kInt);
    Tensors results{x.max(), x.min()};
    append(results, as_list(x.max(1)));
    append(results, as_list(at::aminmax(x)));
    return results;
  });
  cases.add("argmax_argmin", [](Inputs& in) {
    const Tensor x = in.randn({6, 11});
    return Tensors{x.argmax(), x.argmin(), x.argmax(1), x.argmin(0, true)};
  });
  cases.differentiable("median", {{6, 11}}, [](const Tensors& x) {
    Tensors results{x[0].median(), at::nanmedian(x[0])};
    append(results, as_list(x[0].median(1)));
    return results;
  });
  cases.add("mode", [](Inputs& in) { return at::mode(in.integers({6, 21}, 0, 4), 1); });
  cases.differentiable("quantile", {{6, 11}}, [](const Tensors& x) {
    return Tensors{at::quantile(x[0], 0.3), at::quantile(x[0], 0.75, 1, true),
                   at::nanquantile(x[0], 0.5, 0, false, "lower")};
  });
}

void add_scans(OpCases& cases) {
  cases.differentiable("cumsum", {{6, 11}}, [](const Tensors& x) {
    return Tensors{x[0].cumsum(0), x[0].cumsum(1, at::kDouble)};
  });
  cases.differentiable("cumprod", {{6, 11}}, [](const Tensors& x) { return x[0].cumprod(1); });
  cases.differentiable("cummax_cummin", {{6, 11}}, [](const Tensors& x) {
    Tensors results = as_list(at::cummax(x[0], 1));
    append(results, as_list(at::cummin(x[0], 0)));
    return results;
  });
  cases.differentiable("diff", {{6, 11}}, [](const Tensors& x) { return at::diff(x[0], 2, 1); });
  cases.differentiable("trapezoid", {{6, 11}},
                       [](const Tensors& x) { return at::trapezoid(x[0], 0.5, 1); });
  cases.differentiable("gradient", {{6, 11}}, [](const Tensors& x) { return at::gradient(x[0]); });
  cases.add("cumsum_of_integers", [](Inputs& in) {
    return Tensors{in.integers({6, 11}, 0, 9, at::kInt).cumsum(1), in.booleans({9}).cumsum(0)};
  });
}

void add_sorting(OpCases& cases) {
  cases.differentiable("sort", {{6, 11}}, [](const Tensors& x) {
    Tensors results = as_list(x[0].sort(1));
    append(results, as_list(x[0].sort(0, /*descending=*/true)));
    return results;
  });
  cases.add("sort_stable", [](Inputs& in) {
    const Tensor x = in.integers({6, 40}, 0, 5);
    Tensors results = as_list(at::sort(x, /*stable=*/true, 1, /*descending=*/true));
    append(results, {at::argsort(x, /*stable=*/true, 0), at::msort(x)});
    return results;
  });
  cases.differentiable("topk", {{6, 11}}, [](const Tensors& x) {
    Tensors results = as_list(x[0].topk(3));
    append(results, as_list(x[0].topk(2, 0, /*largest=*/false)));
    return results;
  });
  cases.differentiable("kthvalue", {{6, 11}}, [](const Tensors& x) { return x[0].kthvalue(4, 1); });
  cases.add("unique", [](Inputs& in) {
    const Tensor x = in.integers({6, 11}, 0, 9);
    Tensors results = as_list(at::_unique2(x, true, true, true));
    append(results, as_list(at::unique_consecutive(x, true, true)));
    append(results, as_list(at::unique_dim(in.integers({9, 2}, 0, 3), 0, true, true, true)));
    return results;
  });
  cases.add("searchsorted_bucketize", [](Inputs& in) {
    const Tensor bounds = std::get<0>(in.randn({9}).sort());
    const Tensor x = in.randn({4, 7});
    return Tensors{at::searchsorted(bounds, x), at::searchsorted(bounds, x, true, true),
                   at::bucketize(x, bounds), at::bucketize(x, bounds, true)};
  });
  cases.add("histc_bincount", [](Inputs& in) {
    const Tensor counted = in.integers({40}, 0, 9);
    return Tensors{at::histc(in.randn({100}), 12, -2, 2), at::bincount(counted),
                   at::bincount(counted, in.randn({40}), 12)};
  });
  cases.add("histogram", [](Inputs& in) { return at::histogram(in.randn({100}), 7); });
}

void add_host_readings(OpCases& cases) {
  cases.add("item", [](Inputs& in) {
    const Tensor x = in.randn({3, 4});
    return Tensors{in.number(x[1][2].item<float>()), in.number(x.sum().item<double>()),
                   in.number(static_cast<double>(in.integers({1}, 5, 900).item<int64_t>())),
                   in.number(x.gt(0).any().item<bool>())};
  });
  cases.add("equal_allclose", [](Inputs& in) {
    const Tensor x = in.randn({3, 4});
    return Tensors{in.number(at::equal(x, x.clone())), in.number(at::equal(x, x + 1)),
                   in.number(at::allclose(x, x + 1e-9)), in.number(at::allclose(x, x + 1)),
                   in.number(x[0][0].is_nonzero())};
  });
}

}  // namespace

void add_reduction_cases(OpCases& cases) {
  add_sums(cases);
  add_extremes(cases);
  add_scans(cases);
  add_sorting(cases);
  add_host_readings(cases);
}

}  // namespace accelerate::device_test
