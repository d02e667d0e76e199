// Layers of image and sound models: convolution, pooling, normalisation, resampling, padding.
#include <torch/nn/functional.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

namespace F = torch::nn::functional;

void add_convolutions(OpCases& cases) {
  cases.differentiable("conv1d", {{2, 4, 15}, {6, 4, 3}, {6}}, [](const Tensors& x) {
    return at::conv1d(x[0], x[1], x[2], /*stride=*/2, /*padding=*/1);
  });
  cases.differentiable("conv1d_same", {{2, 4, 15}, {6, 4, 4}, {6}},
                       [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2], 1, "same"); });
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    cases.differentiable(
        std::string("conv2d_") + c10::toString(dtype), {{2, 3, 9, 10}, {5, 3, 3, 3}, {5}},
        [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1); }, dtype);
  }
  cases.differentiable("conv2d_without_bias", {{2, 3, 9, 10}, {5, 3, 3, 3}},
                       [](const Tensors& x) { return at::conv2d(x[0], x[1]); });
  cases.differentiable("conv2d_of_one_image", {{3, 9, 10}, {5, 3, 3, 3}},
                       [](const Tensors& x) { return at::conv2d(x[0], x[1]); });
  cases.differentiable("conv2d_grouped", {{2, 4, 9, 10}, {6, 2, 3, 3}, {6}}, [](const Tensors& x) {
    return at::conv2d(x[0], x[1], x[2], 1, Dims{0}, 1, 2);
  });
  cases.differentiable("conv2d_depthwise", {{2, 4, 9, 10}, {8, 1, 3, 3}},
                       [](const Tensors& x) { return at::conv2d(x[0], x[1], {}, 1, 1, 1, 4); });
  cases.differentiable("conv2d_dilated", {{2, 3, 11, 10}, {5, 3, 3, 3}, {5}},
                       [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 2, 2, 2); });
  cases.differentiable("conv2d_pointwise", {{2, 3, 9, 10}, {5, 3, 1, 1}},
                       [](const Tensors& x) { return at::conv2d(x[0], x[1]); });
  cases.differentiable("conv2d_channels_last", {{2, 4, 9, 10}, {6, 4, 3, 3}, {6}},
                       [](const Tensors& x) {
                         return at::conv2d(x[0].contiguous(at::MemoryFormat::ChannelsLast),
                                           x[1].contiguous(at::MemoryFormat::ChannelsLast), x[2]);
                       });
  cases.differentiable("conv1d_of_transposed", {{2, 15, 4}, {3, 4, 6}}, [](const Tensors& x) {
    return at::conv1d(x[0].transpose(1, 2), x[1].transpose(0, 2));
  });
  cases.differentiable(
      "conv2d_of_channels_last_images", {{2, 4, 9, 10}, {6, 4, 3, 3}, {6, 2, 3, 3}, {4, 3, 3, 3}},
      [](const Tensors& x) {
        const Tensor images = x[0].contiguous(at::MemoryFormat::ChannelsLast);
        return Tensors{at::conv2d(images, x[1]), at::conv2d(images, x[1], {}, 2, 1, 2),
                       at::conv2d(images, x[2], {}, 1, Dims{0}, 1, 2),
                       at::conv_transpose2d(images, x[3])};
      });
  cases.differentiable(
      "conv2d_of_channels_last_doubles", {{2, 4, 9, 10}, {6, 4, 3, 3}},
      [](const Tensors& x) {
        return at::conv2d(x[0].contiguous(at::MemoryFormat::ChannelsLast), x[1]);
      },
      at::kDouble);
  cases.differentiable(
      "conv3d_of_channels_last", {{2, 3, 5, 6, 7}, {4, 3, 3, 3, 2}}, [](const Tensors& x) {
        return at::conv3d(x[0].contiguous(at::MemoryFormat::ChannelsLast3d), x[1], {}, 1, 1);
      });
  cases.differentiable("conv3d", {{2, 3, 5, 6, 7}, {4, 3, 3, 3, 2}, {4}},
                       [](const Tensors& x) { return at::conv3d(x[0], x[1], x[2], 1, 1); });
  cases.differentiable("conv_transpose1d", {{2, 4, 7}, {4, 3, 3}, {3}}, [](const Tensors& x) {
    return at::conv_transpose1d(x[0], x[1], x[2], 2, 1, 1);
  });
  cases.differentiable("conv_transpose2d", {{2, 4, 7, 6}, {4, 3, 3, 3}, {6}}, [](const Tensors& x) {
    return at::conv_transpose2d(x[0], x[1], x[2], 2, 1, 1, /*groups=*/2);
  });
  cases.differentiable("conv_transpose3d", {{2, 4, 3, 4, 5}, {4, 3, 2, 2, 2}},
                       [](const Tensors& x) { return at::conv_transpose3d(x[0], x[1]); });
  cases.differentiable("conv_tbc", {{9, 2, 4}, {3, 4, 5}, {5}},
                       [](const Tensors& x) { return at::conv_tbc(x[0], x[1], x[2], 1); });
  cases.differentiable("fold_unfold", {{2, 3, 8, 9}}, [](const Tensors& x) {
    const Tensor columns = at::im2col(x[0], {3, 3}, {1, 1}, {1, 1}, {2, 2});
    return Tensors{columns, at::col2im(columns, {8, 9}, {3, 3}, {1, 1}, {1, 1}, {2, 2})};
  });
}

void add_pooling(OpCases& cases) {
  cases.differentiable("max_pool1d", {{2, 3, 12}}, [](const Tensors& x) {
    return Tensors{at::max_pool1d(x[0], 3, 2), std::get<0>(at::max_pool1d_with_indices(x[0], 2))};
  });
  cases.differentiable("max_pool2d", {{2, 3, 9, 10}}, [](const Tensors& x) {
    return Tensors{at::max_pool2d(x[0], 2), at::max_pool2d(x[0], 3, 2, 1, 1, /*ceil_mode=*/true)};
  });
  cases.differentiable("max_pool2d_with_indices", {{2, 3, 9, 10}},
                       [](const Tensors& x) { return at::max_pool2d_with_indices(x[0], 3, 2); });
  cases.differentiable("max_pool2d_channels_last", {{2, 4, 8, 8}}, [](const Tensors& x) {
    return at::max_pool2d(x[0].contiguous(at::MemoryFormat::ChannelsLast), 2);
  });
  cases.differentiable("max_pool3d", {{2, 3, 6, 7, 8}},
                       [](const Tensors& x) { return at::max_pool3d(x[0], 2); });
  cases.differentiable("max_unpool2d", {{2, 3, 8, 8}}, [](const Tensors& x) {
    const auto [pooled, indices] = at::max_pool2d_with_indices(x[0], 2);
    return at::max_unpool2d(pooled, indices, {8, 8});
  });
  cases.differentiable("avg_pool1d", {{2, 3, 12}},
                       [](const Tensors& x) { return at::avg_pool1d(x[0], 3, 2, 1); });
  cases.differentiable("avg_pool2d", {{2, 3, 9, 10}}, [](const Tensors& x) {
    return Tensors{at::avg_pool2d(x[0], 2), at::avg_pool2d(x[0], 3, 2, 1, true, false)};
  });
  cases.differentiable("avg_pool3d", {{2, 3, 6, 7, 8}},
                       [](const Tensors& x) { return at::avg_pool3d(x[0], 2); });
  cases.differentiable("adaptive_avg_pool", {{2, 3, 9, 10}}, [](const Tensors& x) {
    return Tensors{at::adaptive_avg_pool2d(x[0], {3, 4}), at::adaptive_avg_pool2d(x[0], {1, 1}),
                   at::adaptive_avg_pool1d(x[0][0], 4)};
  });
  cases.differentiable("adaptive_avg_pool3d", {{2, 3, 5, 6, 7}},
                       [](const Tensors& x) { return at::adaptive_avg_pool3d(x[0], {2, 3, 3}); });
  cases.differentiable("adaptive_max_pool", {{2, 3, 9, 10}}, [](const Tensors& x) {
    Tensors results = as_list(at::adaptive_max_pool2d(x[0], {3, 4}));
    append(results, as_list(at::adaptive_max_pool1d(x[0][0], 4)));
    return results;
  });
  cases.differentiable("adaptive_max_pool3d", {{2, 3, 5, 6, 7}},
                       [](const Tensors& x) { return at::adaptive_max_pool3d(x[0], {2, 3, 3}); });
  cases.differentiable("pooling_of_channels_last", {{2, 4, 9, 10}, {2, 4, 6, 7, 8}},
                       [](const Tensors& x) {
                         const Tensor image = x[0].contiguous(at::MemoryFormat::ChannelsLast);
                         const Tensor volume = x[1].contiguous(at::MemoryFormat::ChannelsLast3d);
                         return Tensors{at::adaptive_avg_pool2d(image, {3, 4}),
                                        at::avg_pool2d(image, 2),
                                        at::reflection_pad2d(image, {1, 2, 3, 1}),
                                        at::replication_pad2d(image, {1, 2, 3, 1}),
                                        at::max_pool3d(volume, 2),
                                        at::adaptive_avg_pool3d(volume, {2, 3, 3})};
                       });
  cases.differentiable("lp_pool2d", {{2, 3, 9, 10}}, [](const Tensors& x) {
    return F::lp_pool2d(x[0], F::LPPool2dFuncOptions(2, 3).stride(2));
  });
  cases.add("fractional_max_pool2d", [](Inputs& in) {
    const Tensor samples = in.uniform({2, 3, 2}, 0, 1);
    return with_gradients(in, {in.randn({2, 3, 9, 10})}, [&](const Tensors& x) {
      return as_list(at::fractional_max_pool2d(x[0], {2, 2}, {4, 5}, samples));
    });
  });
}

// Running statistics are results too.
void add_batch_norm(OpCases& cases, const std::string& name, std::vector<int64_t> size, bool train,
                    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  cases.add(name, [=](Inputs& in) {
    const Tensor mean = in.randn({4});
    const Tensor variance = in.uniform({4}, 0.5, 2);
    const Tensor input = in.randn(size).contiguous(format);
    Tensors results =
        with_gradients(in, {input, in.randn({4}), in.randn({4})}, [&](const Tensors& x) {
          return as_list(at::batch_norm(x[0], x[1], x[2], mean, variance, train, 0.1, 1e-5, false));
        });
    append(results, {mean, variance});
    return results;
  });
}

void add_normalisation(OpCases& cases) {
  add_batch_norm(cases, "batch_norm1d_train", {8, 4}, true);
  add_batch_norm(cases, "batch_norm1d_eval", {8, 4}, false);
  add_batch_norm(cases, "batch_norm2d_train", {3, 4, 5, 6}, true);
  add_batch_norm(cases, "batch_norm2d_eval", {3, 4, 5, 6}, false);
  add_batch_norm(cases, "batch_norm3d_train", {3, 4, 2, 5, 6}, true);
  add_batch_norm(cases, "batch_norm2d_channels_last", {3, 4, 5, 6}, true,
                 at::MemoryFormat::ChannelsLast);
  cases.differentiable("batch_norm_without_statistics", {{3, 4, 5, 6}}, [](const Tensors& x) {
    return at::batch_norm(x[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
  });
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    cases.differentiable(
        std::string("layer_norm_") + c10::toString(dtype), {{3, 4, 16}, {16}, {16}},
        [](const Tensors& x) { return at::layer_norm(x[0], {16}, x[1], x[2]); }, dtype);
  }
  cases.differentiable("layer_norm_over_two_dims", {{3, 4, 5}},
                       [](const Tensors& x) { return at::layer_norm(x[0], {4, 5}); });
  cases.differentiable("group_norm", {{3, 6, 5, 4}, {6}, {6}},
                       [](const Tensors& x) { return at::group_norm(x[0], 2, x[1], x[2]); });
  cases.add("norms_of_mixed_precision", [](Inputs& in) {
    return with_gradients(
        in, {in.randn({3, 6, 5, 4}, at::kBFloat16), in.randn({6}), in.randn({4})},
        [](const Tensors& x) {
          return Tensors{at::layer_norm(x[0], {4}, x[2], x[2]), at::group_norm(x[0], 2, x[1], x[1]),
                         at::batch_norm(x[0], x[1], x[1], {}, {}, true, 0.1, 1e-5, false)};
        });
  });
  cases.differentiable("rms_norm", {{3, 4, 16}, {16}},
                       [](const Tensors& x) { return at::rms_norm(x[0], {16}, x[1]); });
  for (bool train : {true, false}) {
    cases.add(train ? "instance_norm_train" : "instance_norm_eval", [train](Inputs& in) {
      const Tensor mean = in.randn({4});
      const Tensor variance = in.uniform({4}, 0.5, 2);
      Tensors results = with_gradients(
          in, {in.randn({3, 4, 5, 6}), in.randn({4}), in.randn({4})}, [&](const Tensors& x) {
            return as_list(
                at::instance_norm(x[0], x[1], x[2], mean, variance, train, 0.1, 1e-5, false));
          });
      append(results, {mean, variance});
      return results;
    });
  }
  cases.differentiable("local_response_norm", {{3, 6, 5, 4}}, [](const Tensors& x) {
    return F::local_response_norm(x[0], F::LocalResponseNormFuncOptions(3));
  });
  cases.differentiable("normalize_renorm", {{3, 6}}, [](const Tensors& x) {
    return Tensors{F::normalize(x[0], F::NormalizeFuncOptions().p(2).dim(1)),
                   at::renorm(x[0], 2, 0, 1)};
  });
  cases.differentiable("weight_norm", {{3, 6}, {3, 1}},
                       [](const Tensors& x) { return at::_weight_norm(x[0], x[1], 0); });
}

void add_resampling(OpCases& cases) {
  cases.differentiable("upsample_nearest", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::upsample_nearest2d(x[0], {9, 11}),
                   at::_upsample_nearest_exact2d(x[0], {9, 11}),
                   at::upsample_nearest1d(x[0][0], {9})};
  });
  cases.differentiable("upsample_nearest3d", {{2, 3, 4, 5, 6}},
                       [](const Tensors& x) { return at::upsample_nearest3d(x[0], {6, 7, 8}); });
  cases.differentiable("upsample_linear", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::upsample_linear1d(x[0][0], {9}, false),
                   at::upsample_bilinear2d(x[0], {9, 11}, false),
                   at::upsample_bilinear2d(x[0], {9, 11}, /*align_corners=*/true),
                   at::_upsample_bilinear2d_aa(x[0], {3, 4}, false)};
  });
  cases.differentiable("upsample_trilinear", {{2, 3, 4, 5, 6}}, [](const Tensors& x) {
    return at::upsample_trilinear3d(x[0], {6, 7, 8}, false);
  });
  cases.differentiable("upsample_bicubic", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::upsample_bicubic2d(x[0], {9, 11}, false),
                   at::_upsample_bicubic2d_aa(x[0], {3, 4}, false)};
  });
  cases.differentiable("interpolate_by_factor", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return F::interpolate(x[0], F::InterpolateFuncOptions()
                                    .scale_factor(std::vector<double>{1.5, 2})
                                    .mode(torch::kBilinear)
                                    .align_corners(false));
  });
  for (int64_t mode : {0, 1, 2}) {
    cases.add("grid_sampler_mode_" + std::to_string(mode), [mode](Inputs& in) {
      return with_gradients(in, {in.randn({2, 3, 5, 6}), in.uniform({2, 4, 7, 2}, -1.2, 1.2)},
                            [&](const Tensors& x) {
                              return Tensors{at::grid_sampler(x[0], x[1], mode, 0, false),
                                             at::grid_sampler(x[0], x[1], mode, 1, true)};
                            });
    });
  }
  cases.add("grid_sampler_3d", [](Inputs& in) {
    return with_gradients(
        in, {in.randn({2, 3, 4, 5, 6}), in.uniform({2, 3, 4, 5, 3}, -1, 1)},
        [](const Tensors& x) { return as_list(at::grid_sampler(x[0], x[1], 0, 0, false)); });
  });
  cases.differentiable("affine_grid", {{2, 2, 3}}, [](const Tensors& x) {
    return at::affine_grid_generator(x[0], {2, 3, 5, 6}, false);
  });
  cases.differentiable("pixel_shuffle", {{2, 8, 4, 6}}, [](const Tensors& x) {
    return Tensors{at::pixel_shuffle(x[0], 2), at::pixel_unshuffle(x[0], 2),
                   at::channel_shuffle(x[0], 4)};
  });
}

void add_padding(OpCases& cases) {
  cases.differentiable("pad_constant", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::constant_pad_nd(x[0], {1, 2, 0, 3}, 0.5),
                   at::constant_pad_nd(x[0], {-1, 2, 1, -2})};
  });
  cases.differentiable("pad_reflect", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::pad(x[0], {1, 2, 3, 1}, "reflect"), at::pad(x[0][0], {1, 2}, "reflect")};
  });
  cases.differentiable("pad_replicate", {{2, 3, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::pad(x[0], {1, 2, 3, 1}, "replicate"), at::pad(x[0][0], {1, 2}, "replicate")};
  });
  cases.differentiable("pad_circular", {{2, 3, 5, 6}},
                       [](const Tensors& x) { return at::pad(x[0], {1, 2, 3, 1}, "circular"); });
  cases.differentiable("pad_3d", {{2, 3, 4, 5, 6}}, [](const Tensors& x) {
    return Tensors{at::pad(x[0], {1, 2, 1, 1, 2, 1}, "reflect"),
                   at::pad(x[0], {1, 2, 1, 1, 2, 1}, "replicate")};
  });
}

}  // namespace

void add_layer_cases(OpCases& cases) {
  add_convolutions(cases);
  add_pooling(cases);
  add_normalisation(cases);
  add_resampling(cases);
  add_padding(cases);
}

}  // namespace accelerate::device_test
