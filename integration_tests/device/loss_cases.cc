// Activations, losses, embeddings and dropout.
#include <torch/nn/functional.h>
#include <torch/utils.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

namespace F = torch::nn::functional;

struct Activation {
  const char* name;
  Tensor (*function)(const Tensor&);
};

#define ACCELERATE_ACTIVATION(op) #op, [](const Tensor& x) { return at::op(x); }

void add_activations(OpCases& cases) {
  const Activation all[] = {
      {ACCELERATE_ACTIVATION(relu)},
      {ACCELERATE_ACTIVATION(relu6)},
      {ACCELERATE_ACTIVATION(elu)},
      {ACCELERATE_ACTIVATION(celu)},
      {ACCELERATE_ACTIVATION(selu)},
      {ACCELERATE_ACTIVATION(gelu)},
      {"gelu_tanh", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
      {ACCELERATE_ACTIVATION(silu)},
      {ACCELERATE_ACTIVATION(mish)},
      {ACCELERATE_ACTIVATION(softplus)},
      {ACCELERATE_ACTIVATION(hardtanh)},
      {ACCELERATE_ACTIVATION(hardswish)},
      {ACCELERATE_ACTIVATION(hardsigmoid)},
      {ACCELERATE_ACTIVATION(log_sigmoid)},
      {ACCELERATE_ACTIVATION(leaky_relu)},
      {ACCELERATE_ACTIVATION(softshrink)},
      {ACCELERATE_ACTIVATION(hardshrink)},
      {"softsign", [](const Tensor& x) { return F::softsign(x); }},
      {"tanhshrink", [](const Tensor& x) { return F::tanhshrink(x); }},
      {"threshold", [](const Tensor& x) { return at::threshold(x, 0.2, -1); }},
      {"glu", [](const Tensor& x) { return at::glu(x, 1); }},
      {"softmax", [](const Tensor& x) { return at::softmax(x, 1); }},
      {"softmax_over_first", [](const Tensor& x) { return at::softmax(x, 0); }},
      {"log_softmax", [](const Tensor& x) { return at::log_softmax(x, 1); }},
      {"softmin", [](const Tensor& x) { return F::softmin(x, F::SoftminFuncOptions(1)); }},
      {"softmax_to_double", [](const Tensor& x) { return at::softmax(x, 1, at::kDouble); }},
  };
  for (const Activation& op : all) {
    cases.add(op.name, [op](Inputs& in) {
      Tensors results;
      for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
        append(results, with_gradients(in, {in.randn({9, 34}, dtype)}, [&](const Tensors& x) {
                 return as_list(op.function(x[0]));
               }));
      }
      return results;
    });
  }
  cases.differentiable("prelu", {{3, 4, 5}, {4}},
                       [](const Tensors& x) { return at::prelu(x[0], x[1]); });
  cases.add("rrelu", [](Inputs& in) {
    return with_gradients(in, {in.randn({3, 40})}, [&](const Tensors& x) {
      return Tensors{at::rrelu(x[0], 0.1, 0.3, /*training=*/true, in.generator(5)),
                     at::rrelu(x[0], 0.1, 0.3, /*training=*/false)};
    });
  });
}

#undef ACCELERATE_ACTIVATION

// Losses of two tensors in each of the three reductions.
template <typename Loss>
void add_loss(OpCases& cases, const char* name, bool target_is_probability, Loss loss) {
  cases.add(name, [=](Inputs& in) {
    Tensors results;
    for (int64_t reduction : {0, 1, 2}) {
      const Tensor target =
          target_is_probability ? in.uniform({6, 7}, 0.05, 0.95) : in.randn({6, 7});
      append(results,
             with_gradients(in, {in.uniform({6, 7}, 0.05, 0.95), target}, [&](const Tensors& x) {
               return as_list(loss(x[0], x[1], reduction));
             }));
    }
    return results;
  });
}

void add_losses(OpCases& cases) {
  add_loss(cases, "mse_loss", false, [](const Tensor& x, const Tensor& y, int64_t reduction) {
    return at::mse_loss(x, y, reduction);
  });
  add_loss(cases, "l1_loss", false, [](const Tensor& x, const Tensor& y, int64_t reduction) {
    return at::l1_loss(x, y, reduction);
  });
  add_loss(cases, "smooth_l1_loss", false, [](const Tensor& x, const Tensor& y, int64_t reduction) {
    return at::smooth_l1_loss(x, y, reduction, 0.5);
  });
  add_loss(cases, "huber_loss", false, [](const Tensor& x, const Tensor& y, int64_t reduction) {
    return at::huber_loss(x, y, reduction, 0.5);
  });
  add_loss(cases, "binary_cross_entropy", true,
           [](const Tensor& x, const Tensor& y, int64_t reduction) {
             return at::binary_cross_entropy(x, y, {}, reduction);
           });
  add_loss(cases, "binary_cross_entropy_with_logits", true,
           [](const Tensor& x, const Tensor& y, int64_t reduction) {
             return at::binary_cross_entropy_with_logits(x, y, {}, {}, reduction);
           });
  add_loss(cases, "kl_div", true, [](const Tensor& x, const Tensor& y, int64_t reduction) {
    return at::kl_div(x.log(), y, reduction);
  });
  add_loss(cases, "poisson_nll_loss", true,
           [](const Tensor& x, const Tensor& y, int64_t reduction) {
             return at::poisson_nll_loss(x, y, true, true, 1e-8, reduction);
           });
  add_loss(cases, "soft_margin_loss", false,
           [](const Tensor& x, const Tensor& y, int64_t reduction) {
             return at::soft_margin_loss(x, y.detach().sign(), reduction);
           });
  add_loss(cases, "hinge_embedding_loss", false,
           [](const Tensor& x, const Tensor& y, int64_t reduction) {
             return at::hinge_embedding_loss(x, y.sign(), 1, reduction);
           });
  add_loss(cases, "multilabel_soft_margin_loss", true,
           [](const Tensor& x, const Tensor& y, int64_t) {
             return F::multilabel_soft_margin_loss(x, y.round());
           });
  cases.differentiable("margin_ranking_loss", {{9}, {9}, {9}}, [](const Tensors& x) {
    return at::margin_ranking_loss(x[0], x[1], x[2].sign(), 0.3);
  });
  cases.differentiable("cosine_embedding_loss", {{9, 4}, {9, 4}, {9}}, [](const Tensors& x) {
    return at::cosine_embedding_loss(x[0], x[1], x[2].sign(), 0.3);
  });
  cases.differentiable("triplet_margin_loss", {{9, 4}, {9, 4}, {9, 4}}, [](const Tensors& x) {
    return Tensors{at::triplet_margin_loss(x[0], x[1], x[2]),
                   F::triplet_margin_with_distance_loss(x[0], x[1], x[2])};
  });
  cases.differentiable("gaussian_nll_loss", {{9, 4}, {9, 4}, {9, 4}}, [](const Tensors& x) {
    return F::mse_loss(x[0], x[1]) + (x[2].square() + 0.1).log().mean();
  });
}

void add_classification_losses(OpCases& cases) {
  cases.add("cross_entropy", [](Inputs& in) {
    const Tensor target = in.integers({9}, 0, 5);
    const Tensor weight = in.uniform({5}, 0.5, 2);
    return with_gradients(in, {in.randn({9, 5})}, [&](const Tensors& x) {
      return Tensors{at::cross_entropy_loss(x[0], target),
                     at::cross_entropy_loss(x[0], target, weight, at::Reduction::Sum, 2, 0.1),
                     at::cross_entropy_loss(x[0], target, {}, at::Reduction::None)};
    });
  });
  cases.add("cross_entropy_with_probabilities", [](Inputs& in) {
    return with_gradients(in, {in.randn({9, 5}), in.uniform({9, 5}, 0, 1)}, [](const Tensors& x) {
      return as_list(at::cross_entropy_loss(x[0], x[1].softmax(1)));
    });
  });
  cases.add("cross_entropy_of_images", [](Inputs& in) {
    const Tensor target = in.integers({2, 4, 6}, 0, 5);
    return with_gradients(in, {in.randn({2, 5, 4, 6})}, [&](const Tensors& x) {
      return as_list(at::cross_entropy_loss(x[0], target));
    });
  });
  cases.add("nll_loss", [](Inputs& in) {
    const Tensor target = in.integers({9}, 0, 5);
    return with_gradients(in, {in.randn({9, 5})}, [&](const Tensors& x) {
      return Tensors{at::nll_loss(x[0], target), at::nll_loss(x[0], target, {}, 0)};
    });
  });
  cases.add("multi_margin_loss", [](Inputs& in) {
    const Tensor target = in.integers({9}, 0, 5);
    return with_gradients(in, {in.randn({9, 5})}, [&](const Tensors& x) {
      return as_list(at::multi_margin_loss(x[0], target));
    });
  });
  cases.add("multilabel_margin_loss", [](Inputs& in) {
    const Tensor target = in.indices({3, 0, -1, 1, 4, 2, -1, 0}).view({2, 4});
    return with_gradients(in, {in.randn({2, 5}).slice(1, 0, 4)}, [&](const Tensors& x) {
      return as_list(at::multilabel_margin_loss(x[0], target.clamp_max(3)));
    });
  });
  cases.add("ctc_loss", [](Inputs& in) {
    const Tensor targets = in.integers({3, 4}, 1, 6);
    return with_gradients(in, {in.randn({12, 3, 6})}, [&](const Tensors& x) {
      const Tensor scores = x[0].log_softmax(2);
      return Tensors{
          at::ctc_loss(scores, targets, Dims{12, 11, 10}, Dims{4, 3, 2}),
          at::ctc_loss(scores, targets, in.indices({12, 11, 10}), in.indices({4, 3, 2}))};
    });
  });
}

void add_embeddings(OpCases& cases) {
  cases.add("embedding", [](Inputs& in) {
    const Tensor indices = in.integers({4, 7}, 0, 10);
    return with_gradients(in, {in.randn({10, 6})}, [&](const Tensors& x) {
      return Tensors{at::embedding(x[0], indices), at::embedding(x[0], indices, 3),
                     at::embedding(x[0], indices, -1, /*scale_grad_by_freq=*/true)};
    });
  });
  for (int64_t mode : {0, 1, 2}) {
    cases.add("embedding_bag_mode_" + std::to_string(mode), [mode](Inputs& in) {
      const Tensor indices = in.integers({20}, 0, 10);
      const Tensor offsets = in.indices({0, 4, 4, 11});
      return with_gradients(in, {in.randn({10, 6})}, [&](const Tensors& x) {
        return as_list(at::embedding_bag(x[0], indices, offsets, false, mode));
      });
    });
  }
  cases.add("embedding_bag_weighted", [](Inputs& in) {
    const Tensor indices = in.integers({20}, 0, 10);
    const Tensor offsets = in.indices({0, 4, 9, 11});
    return with_gradients(in, {in.randn({10, 6}), in.randn({20})}, [&](const Tensors& x) {
      return as_list(std::get<0>(at::embedding_bag(x[0], indices, offsets, false, 0, false, x[1])));
    });
  });
  cases.add("embedding_renorm", [](Inputs& in) {
    Tensor weight = in.randn({10, 6});
    at::embedding_renorm_(weight, in.integers({5}, 0, 10), 1.0, 2.0);
    return weight;
  });
  cases.add("one_hot", [](Inputs& in) { return at::one_hot(in.integers({4, 7}, 0, 10), 12); });
}

void add_dropout(OpCases& cases) {
  cases.add("dropout", [](Inputs& in) {
    torch::manual_seed(31);
    return with_gradients(in, {in.randn({9, 40})}, [](const Tensors& x) {
      return Tensors{at::dropout(x[0], 0.3, true), at::dropout(x[0], 0.3, true),
                     at::dropout(x[0], 0.3, false), at::dropout(x[0], 1, true)};
    });
  });
  // Probabilities whose noise is not exact, dense and strided inputs.
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    cases.add(std::string("dropout_") + c10::toString(dtype), [dtype](Inputs& in) {
      torch::manual_seed(36);
      return with_gradients(
          in, {in.randn({9, 40}, dtype), in.randn({40, 9}, dtype)}, [](const Tensors& x) {
            Tensors results;
            for (double p : {0.05, 0.1, 0.37, 0.45, 0.9}) {
              append(results, {at::dropout(x[0], p, true), at::dropout(x[1].t(), p, true),
                               at::dropout(x[1].slice(1, 0, 9, 2), p, true)});
            }
            return results;
          });
    });
  }
  cases.add("dropout_in_place", [](Inputs& in) {
    torch::manual_seed(32);
    Tensor x = in.randn({9, 40});
    at::dropout_(x, 0.5, true);
    return x;
  });
  cases.add("feature_dropout", [](Inputs& in) {
    torch::manual_seed(33);
    return with_gradients(in, {in.randn({4, 9, 3, 3})}, [](const Tensors& x) {
      return Tensors{at::feature_dropout(x[0], 0.4, true), at::alpha_dropout(x[0], 0.4, true),
                     at::feature_alpha_dropout(x[0], 0.4, true)};
    });
  });
  cases.add("native_dropout", [](Inputs& in) {
    torch::manual_seed(34);
    return with_gradients(in, {in.randn({9, 40})}, [](const Tensors& x) {
      return as_list(at::native_dropout(x[0], 0.4, true));
    });
  });
  cases.add("gumbel_softmax", [](Inputs& in) {
    torch::manual_seed(35);
    return with_gradients(in, {in.randn({9, 5})}, [](const Tensors& x) {
      return as_list(F::gumbel_softmax(x[0], F::GumbelSoftmaxFuncOptions().hard(true).dim(1)));
    });
  });
}

}  // namespace

void add_loss_cases(OpCases& cases) {
  add_activations(cases);
  add_losses(cases);
  add_classification_losses(cases);
  add_embeddings(cases);
  add_dropout(cases);
}

}  // namespace accelerate::device_test
