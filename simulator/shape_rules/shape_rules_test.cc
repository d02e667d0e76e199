// Operators with options other than the usual ones, on Meta tensors as on the CPU. Strides, aliases
// and memory are compared in integration_tests/device, for what its cases call.
#include "simulator/shape_rules/shape_rules.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using Tensors = std::vector<at::Tensor>;
using Shape = std::vector<int64_t>;

// Where a case's tensors are.
class Place {
 public:
  explicit Place(c10::DeviceType device) : options_(device) {}

  at::Tensor ones(const Shape& sizes, at::ScalarType dtype = at::kFloat) const {
    return at::ones(sizes, options_.dtype(dtype));
  }
  at::Tensor zeros(const Shape& sizes, at::ScalarType dtype = at::kLong) const {
    return at::zeros(sizes, options_.dtype(dtype));
  }
  at::Tensor steps(int64_t end, int64_t step) const {
    return at::arange(0, end, step, options_.dtype(at::kLong));
  }
  at::TensorOptions options(at::ScalarType dtype = at::kFloat) const {
    return options_.dtype(dtype);
  }

 private:
  at::TensorOptions options_;
};

template <typename... Results>
Tensors list(const std::tuple<Results...>& results) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, results);
}
Tensors list(const at::Tensor& result) { return {result}; }

struct Case {
  const char* name;
  std::function<Tensors(const Place& place)> run;
};

// "Float[2, 3]" for each result, or the error.
std::vector<std::string> results_of(const Case& each, c10::DeviceType device) {
  std::vector<std::string> texts;
  try {
    for (const at::Tensor& result : each.run(Place(device))) {
      EXPECT_EQ(result.device().type(), device) << each.name;
      std::string text = c10::toString(result.scalar_type());
      for (const int64_t size : result.sizes()) text += " " + std::to_string(size);
      texts.push_back(text);
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << each.name << ": " << error.what();
  }
  return texts;
}

void compare(std::initializer_list<Case> cases) {
  install_shape_rules();
  const at::NoGradGuard no_gradients;
  for (const Case& each : cases) {
    EXPECT_EQ(results_of(each, at::kMeta), results_of(each, at::kCPU)) << each.name;
  }
}

TEST(ShapeRules, OfPickedElements) {
  compare({
      {"nonzero_static",
       [](const Place& p) { return list(at::nonzero_static(p.ones({3, 4}), 5)); }},
      {"narrow_copy",
       [](const Place& p) { return list(at::narrow_copy(p.ones({3, 4}), -1, 1, 2)); }},
      {"index_select",
       [](const Place& p) { return list(at::index_select(p.ones({3, 4, 5}), -2, p.zeros({7}))); }},
      {"take", [](const Place& p) { return list(at::take(p.ones({3, 4}), p.zeros({2, 5}))); }},
      {"searchsorted to int32",
       [](const Place& p) {
         return list(at::searchsorted(p.ones({5}), p.ones({2, 3}), /*out_int32=*/true));
       }},
      {"bucketize to int32",
       [](const Place& p) {
         return list(at::bucketize(p.ones({2, 3}), p.ones({5}), /*out_int32=*/true));
       }},
      {"repeat_interleave",
       [](const Place& p) {
         return list(at::repeat_interleave(p.ones({4}, at::kLong), std::optional<int64_t>(4)));
       }},
      {"_stack",
       [](const Place& p) {
         return list(at::_stack(Tensors{p.ones({2, 3}), p.ones({2, 3})}, /*dim=*/-1));
       }},
      {"multinomial of one row",
       [](const Place& p) { return list(at::multinomial(p.ones({4}), 2)); }},
      {"multinomial", [](const Place& p) { return list(at::multinomial(p.ones({3, 4}), 2)); }},
  });
}

TEST(ShapeRules, OfWhatIsMadeFromNumbers) {
  compare({
      {"tril_indices below",
       [](const Place& p) { return list(at::tril_indices(5, 7, -2, p.options(at::kInt))); }},
      {"tril_indices above",
       [](const Place& p) { return list(at::tril_indices(5, 7, 3, p.options(at::kLong))); }},
      {"triu_indices below",
       [](const Place& p) { return list(at::triu_indices(7, 5, -2, p.options(at::kInt))); }},
      {"triu_indices above",
       [](const Place& p) { return list(at::triu_indices(5, 7, 3, p.options(at::kLong))); }},
      {"kaiser_window",
       [](const Place& p) { return list(at::kaiser_window(6, false, 8.0, p.options())); }},
      {"periodic kaiser_window",
       [](const Place& p) {
         return list(at::kaiser_window(6, true, 8.0, p.options(at::kDouble)));
       }},
      {"kaiser_window of one",
       [](const Place& p) { return list(at::kaiser_window(1, true, 8.0, p.options())); }},
  });
}

TEST(ShapeRules, OfSegments) {
  compare({
      {"segment_reduce by lengths",
       [](const Place& p) {
         return list(at::segment_reduce(p.ones({2, 6, 3}), "sum", p.ones({2, 3}, at::kLong) * 2, {},
                                        {}, /*axis=*/1, /*unsafe=*/true));
       }},
      {"segment_reduce by offsets",
       [](const Place& p) {
         const at::Tensor offsets = p.steps(8, 2).expand({2, 4}).contiguous();
         return list(at::segment_reduce(p.ones({2, 6, 3}), "sum", {}, {}, offsets, /*axis=*/1,
                                        /*unsafe=*/true));
       }},
  });
}

TEST(ShapeRules, OfReductions) {
  for (const bool keep : {false, true}) {
    compare({
        {"kthvalue",
         [=](const Place& p) { return list(at::kthvalue(p.ones({3, 4, 5}), 2, 1, keep)); }},
        {"median", [=](const Place& p) { return list(at::median(p.ones({3, 4, 5}), -3, keep)); }},
        {"mode", [=](const Place& p) { return list(at::mode(p.ones({3, 4, 5}), 1, keep)); }},
        {"var",
         [=](const Place& p) {
           const Shape dims = {0, 2};
           return list(p.ones({3, 4, 5}).var(at::IntArrayRef(dims), at::Scalar(1), keep));
         }},
        {"var_mean",
         [=](const Place& p) {
           const Shape dims = {1};
           return list(at::var_mean(p.ones({3, 4, 5}), at::IntArrayRef(dims), at::Scalar(0), keep));
         }},
        {"nansum",
         [=](const Place& p) {
           const Shape dims = {1};
           return list(at::nansum(p.ones({3, 4}), at::IntArrayRef(dims), keep, at::kDouble));
         }},
    });
  }
  compare({
      {"count_nonzero",
       [](const Place& p) {
         const Shape dims = {0, 2};
         return list(at::count_nonzero(p.ones({3, 4, 5}), at::IntArrayRef(dims)));
       }},
      {"histc", [](const Place& p) { return list(at::histc(p.ones({3, 4}), 7, 0, 2)); }},
      {"prod of whole numbers",
       [](const Place& p) { return list(at::prod(p.ones({3, 4}, at::kInt))); }},
      {"trace of whole numbers",
       [](const Place& p) { return list(at::trace(p.ones({3, 4}, at::kInt))); }},
  });
}

TEST(ShapeRules, OfColumnsWithEveryOptionByDim) {
  const auto columns = [](const at::Tensor& image) {
    return at::im2col(image, {2, 3}, {1, 2}, {1, 0}, {2, 1});
  };
  compare({
      {"im2col", [=](const Place& p) { return list(columns(p.ones({2, 3, 7, 8}))); }},
      {"im2col of one image", [=](const Place& p) { return list(columns(p.ones({3, 7, 8}))); }},
      {"col2im",
       [=](const Place& p) {
         return list(
             at::col2im(columns(p.ones({2, 3, 7, 8})), {7, 8}, {2, 3}, {1, 2}, {1, 0}, {2, 1}));
       }},
      {"col2im of one image",
       [=](const Place& p) {
         return list(
             at::col2im(columns(p.ones({3, 7, 8})), {7, 8}, {2, 3}, {1, 2}, {1, 0}, {2, 1}));
       }},
  });
}

TEST(ShapeRules, OfPoolsWithEveryOptionByDim) {
  for (const bool ceil : {false, true}) {
    const auto pool = [ceil](const at::Tensor& image) {
      return list(
          at::max_pool3d_with_indices(image, {2, 3, 2}, {2, 1, 3}, {1, 1, 0}, {1, 2, 1}, ceil));
    };
    compare({
        {"max_pool3d", [=](const Place& p) { return pool(p.ones({1, 2, 7, 8, 9})); }},
        {"max_pool3d of one image", [=](const Place& p) { return pool(p.ones({2, 8, 9, 10})); }},
    });
  }
  compare({{"max_pool3d, its kernel as its stride", [](const Place& p) {
              return list(at::max_pool3d_with_indices(p.ones({1, 2, 7, 8, 9}), {2, 3, 4}));
            }}});
}

TEST(ShapeRules, OfConvolutionsOfOneImage) {
  compare({
      {"slow_conv_dilated2d",
       [](const Place& p) {
         return list(at::slow_conv_dilated2d(p.ones({3, 9, 8}), p.ones({4, 3, 2, 3}), {2, 3}, {},
                                             {2, 1}, {1, 0}, {1, 2}));
       }},
      {"slow_conv_dilated3d",
       [](const Place& p) {
         return list(at::slow_conv_dilated3d(p.ones({3, 6, 7, 8}), p.ones({4, 3, 2, 2, 3}),
                                             {2, 2, 3}, {}, {2, 1, 1}, {1, 0, 1}, {1, 2, 1}));
       }},
      {"slow_conv_transpose3d",
       [](const Place& p) {
         return list(at::slow_conv_transpose3d(p.ones({3, 4, 5, 6}), p.ones({3, 2, 2, 3, 2}),
                                               {2, 3, 2}, {}, {2, 1, 2}, {1, 0, 0}, {1, 0, 1},
                                               {1, 1, 1}));
       }},
  });
}

TEST(ShapeRules, OfPaddingBySides) {
  compare({
      {"reflection_pad2d",
       [](const Place& p) {
         return list(at::reflection_pad2d(p.ones({1, 2, 5, 6}), {1, 2, 3, 0}));
       }},
      {"grid_sampler_2d",
       [](const Place& p) {
         return list(at::grid_sampler_2d(p.ones({2, 3, 4, 5}), p.ones({2, 6, 7, 2}), 0, 0, false));
       }},
      {"grid_sampler_3d",
       [](const Place& p) {
         return list(
             at::grid_sampler_3d(p.ones({2, 3, 4, 5, 6}), p.ones({2, 7, 8, 9, 3}), 0, 0, false));
       }},
  });
}

TEST(ShapeRules, OfBagsOfEmbeddings) {
  for (const bool include_last : {false, true}) {
    for (const int64_t padding : {-1, 2}) {
      for (const int64_t mode : {0, 1, 2}) {
        compare({{"_embedding_bag", [=](const Place& p) {
                    return list(at::_embedding_bag(p.ones({10, 4}), p.zeros({6}), p.steps(7, 3),
                                                   false, mode, false, {}, include_last, padding));
                  }}});
      }
    }
  }
}

TEST(ShapeRules, OfLosses) {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean}) {
    compare({
        {"nll_loss2d",
         [=](const Place& p) {
           return list(at::nll_loss2d_forward(p.ones({2, 3, 4, 5}), p.zeros({2, 4, 5}), {},
                                              reduction, -100));
         }},
        {"huber_loss",
         [=](const Place& p) {
           return list(at::huber_loss(p.ones({3, 1}), p.ones({1, 4}), reduction));
         }},
    });
  }
}

TEST(ShapeRules, OfProductsAndDistances) {
  compare({
      {"addbmm",
       [](const Place& p) {
         return list(at::addbmm(p.ones({2, 5}), p.ones({3, 2, 4}), p.ones({3, 4, 5})));
       }},
      {"_cdist_forward",
       [](const Place& p) {
         return list(
             at::_cdist_forward(p.ones({2, 1, 3, 4}), p.ones({5, 6, 4}), 2.0, std::nullopt));
       }},
      {"_pdist_forward", [](const Place& p) { return list(at::_pdist_forward(p.ones({4, 3}))); }},
      {"_pdist_forward of one row",
       [](const Place& p) { return list(at::_pdist_forward(p.ones({1, 3}))); }},
      {"linalg_solve_triangular",
       [](const Place& p) {
         return list(
             at::linalg_solve_triangular(p.ones({1, 3, 3}), p.ones({4, 3, 2}), /*upper=*/true));
       }},
  });
}

TEST(ShapeRules, OfFourierTransforms) {
  compare({
      {"_fft_c2r",
       [](const Place& p) {
         return list(at::_fft_c2r(p.ones({3, 5}, at::kComplexFloat), {0, 1}, 0, 9));
       }},
      {"_fft_c2r of the first dim",
       [](const Place& p) {
         return list(at::_fft_c2r(p.ones({5, 3}, at::kComplexDouble), {0}, 0, 8));
       }},
      {"_fft_r2c, one side",
       [](const Place& p) { return list(at::_fft_r2c(p.ones({3, 6}), {0, 1}, 0, true)); }},
      {"_fft_r2c, two sides",
       [](const Place& p) { return list(at::_fft_r2c(p.ones({3, 6}), {1}, 0, false)); }},
  });
}

}  // namespace
}  // namespace accelerate::simulator
