// Few numbers of many, and scans.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/sum.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

// All reductions over the same dims have the same shape.
Tensor reduced(const Tensor& self, const std::optional<Dims>& dims, bool keep, Dtype dtype) {
  return at::sum(self, at::OptionalIntArrayRef(dims ? at::IntArrayRef(*dims) : at::IntArrayRef()),
                 keep, dtype);
}

Dtype sum_dtype(const Tensor& self) {
  return c10::isIntegralType(self.scalar_type(), /*includeBool=*/true) ? at::kLong
                                                                       : self.scalar_type();
}

Tensor count_nonzero(const Tensor& self, const Dims& dims) {
  return dims.empty() ? dense({}, at::kLong) : reduced(self, dims, false, at::kLong);
}
Tensor nansum(const Tensor& self, const std::optional<Dims>& dims, bool keep,
              std::optional<Dtype> dtype) {
  return reduced(self, dims, keep, dtype.value_or(sum_dtype(self)));
}
Tensor deviation(const Tensor& self, const std::optional<Dims>& dims,
                 const std::optional<at::Scalar>&, bool keep) {
  return reduced(self, dims, keep, c10::toRealValueType(self.scalar_type()));
}
Results deviation_and_mean(const Tensor& self, const std::optional<Dims>& dims,
                           const std::optional<at::Scalar>& correction, bool keep) {
  return {deviation(self, dims, correction, keep), reduced(self, dims, keep, self.scalar_type())};
}

Tensor of_all(const Tensor& self) { return dense({}, self.scalar_type()); }
Tensor product_of_all(const Tensor& self, std::optional<Dtype> dtype) {
  return dense({}, dtype.value_or(sum_dtype(self)));
}
Results two_of_all(const Tensor& self) { return {of_all(self), of_all(self)}; }
Tensor sum_of_all(const Tensor& self) { return dense({}, sum_dtype(self)); }

// An element for each row along `dim`, and where it is.
Results picked(const Tensor& self, int64_t dim, bool keep) {
  Dims sizes(self.sizes());
  if (!sizes.empty()) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    if (keep) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  return {dense(sizes, self.scalar_type()), dense(sizes, at::kLong)};
}
Results kth_value(const Tensor& self, int64_t, int64_t dim, bool keep) {
  return picked(self, dim, keep);
}

Tensor histogram_of_range(const Tensor& self, int64_t bins) {
  return dense({bins}, self.scalar_type());
}
Results histogram(const Tensor& self, int64_t bins) {
  return {dense({bins}, self.scalar_type()), dense({bins + 1}, self.scalar_type())};
}
Results histogram_of_edges(const Tensor& self, const Tensor& edges) {
  return {dense({edges.numel() - 1}, self.scalar_type()),
          dense({edges.numel()}, self.scalar_type())};
}
Results histogram_edges(const Tensor& self, const Dims& bins) {
  Results edges;
  for (const int64_t count : bins) edges.push_back(dense({count + 1}, self.scalar_type()));
  return edges;
}
Tensor counts_in_bins(const Tensor& self, const Dims& bins) {
  return dense(bins, self.scalar_type());
}
Tensor counts_between_edges(const Tensor& self, const std::vector<Tensor>& edges) {
  Dims bins;
  for (const Tensor& edge : edges) bins.push_back(edge.numel() - 1);
  return dense(bins, self.scalar_type());
}

}  // namespace

Rules reduction_rules() {
  return {
      {"count_nonzero.dim_IntList", by<count_nonzero>},
      {"nansum", by<nansum>},
      {"std.correction var.correction", by<deviation>},
      {"std_mean.correction var_mean.correction", by<deviation_and_mean>},
      {"max min median nanmedian", by<of_all>},
      {"prod", by<product_of_all>},
      {"_aminmax", by<two_of_all>},
      {"median.dim nanmedian.dim mode", by<picked>},
      {"kthvalue", by<kth_value>},
      {"trace", by<sum_of_all>},
      {"_logcumsumexp", by<contiguous_like>},
      {"_cummax_helper _cummin_helper", by<into_arguments>},
      {"histc", by<histogram_of_range>},
      {"histogram.bin_ct", by<histogram>},
      {"histogram.bins_tensor", by<histogram_of_edges>},
      {"_histogramdd_bin_edges", by<histogram_edges>},
      {"_histogramdd_from_bin_cts", by<counts_in_bins>},
      {"_histogramdd_from_bin_tensors", by<counts_between_edges>},
      {"bincount _unique _unique2 unique_dim unique_consecutive unique_dim_consecutive",
       by_refusal},
  };
}

}  // namespace accelerate::simulator::shape_rules
