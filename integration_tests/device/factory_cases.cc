// Tensors out of nothing: constants, ranges and random numbers.
#include <ATen/ATen.h>
#include <torch/utils.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_constants(OpCases& cases) {
  cases.add("zeros_ones_full", [](Inputs& in) {
    const Tensor x = in.randn({3, 4}, at::kDouble);
    return Tensors{at::zeros({3, 4}, in.options()),
                   at::ones({2}, in.options(at::kInt)),
                   at::full({2, 2}, 1.5, in.options()),
                   at::full({3}, 7, in.options(at::kLong)),
                   at::zeros_like(x),
                   at::ones_like(x, in.options(at::kBool)),
                   at::full_like(x, 2.5),
                   x.new_zeros({5}),
                   x.new_full({2}, 3),
                   at::zeros_like(x.t()),
                   at::scalar_tensor(2.5, in.options())};
  });
  cases.add("empty_then_filled", [](Inputs& in) {
    return Tensors{at::empty({3, 4}, in.options()).fill_(2),
                   at::empty_like(in.randn({2, 3})).zero_(),
                   at::empty_strided({2, 3}, {1, 2}, in.options()).fill_(1),
                   at::empty({2, 3, 4, 5}, in.options(), at::MemoryFormat::ChannelsLast).fill_(4)};
  });
  cases.add("ranges", [](Inputs& in) {
    return Tensors{at::arange(7, in.options(at::kLong)),
                   at::arange(1, 9, 2, in.options()),
                   at::arange(0.5, 3, 0.25, in.options(at::kDouble)),
                   at::linspace(-1, 2, 11, in.options()),
                   at::logspace(-1, 2, 7, 10, in.options()),
                   at::range(1, 4, 0.5, in.options())};
  });
  cases.add("matrices", [](Inputs& in) {
    return Tensors{at::eye(4, in.options()), at::eye(3, 5, in.options(at::kLong)),
                   at::tril_indices(3, 4, 0, in.options(at::kLong)),
                   at::triu_indices(3, 4, 1, in.options(at::kLong))};
  });
  cases.add("windows", [](Inputs& in) {
    return Tensors{at::hann_window(9, in.options()), at::hamming_window(9, in.options()),
                   at::blackman_window(9, in.options()), at::bartlett_window(9, in.options()),
                   at::kaiser_window(9, in.options())};
  });
  cases.add("tensor_of_values", [](Inputs& in) {
    return Tensors{at::tensor({1.5, 2.5, -1.0}, in.options()),
                   at::tensor({1, 2, 3}, in.options(at::kInt)), at::tensor(3.5, in.options())};
  });
}

// The same draws, once with a generator of one's own, once with the device's default one.
void add_draws(OpCases& cases, const std::string& name,
               Tensors (*draw)(Inputs& in, std::optional<at::Generator> generator)) {
  cases.add(name + "_with_generator", [draw](Inputs& in) {
    const at::Generator generator = in.generator(17);
    Tensors results = draw(in, generator);
    append(results, draw(in, generator));
    return results;
  });
  cases.add(name + "_by_default", [draw](Inputs& in) {
    torch::manual_seed(17);
    Tensors results = draw(in, std::nullopt);
    append(results, draw(in, std::nullopt));
    return results;
  });
}

using Generator = std::optional<at::Generator>;

void add_random(OpCases& cases) {
  add_draws(cases, "randn", [](Inputs& in, Generator generator) {
    return Tensors{at::randn({5}, generator, in.options()),
                   at::randn({7, 9}, generator, in.options()),
                   at::randn({40}, generator, in.options(at::kDouble)),
                   at::randn({40}, generator, in.options(at::kBFloat16))};
  });
  add_draws(cases, "rand", [](Inputs& in, Generator generator) {
    return Tensors{at::rand({5}, generator, in.options()),
                   at::rand({7, 9}, generator, in.options(at::kDouble))};
  });
  add_draws(cases, "randint", [](Inputs& in, Generator generator) {
    return Tensors{at::randint(9, {30}, generator, in.options(at::kLong)),
                   at::randint(-5, 5, {30}, generator, in.options(at::kInt)),
                   at::randint(0, 3, {30}, generator, in.options())};
  });
  add_draws(cases, "randperm", [](Inputs& in, Generator generator) {
    return Tensors{at::randperm(20, generator, in.options(at::kLong)),
                   at::randperm(9, generator, in.options(at::kInt))};
  });
  add_draws(cases, "bernoulli", [](Inputs& in, Generator generator) {
    const Tensor p = in.uniform({40}, 0, 1);
    return Tensors{at::bernoulli(p, generator),
                   at::empty({40}, in.options()).bernoulli_(0.3, generator),
                   at::empty({40}, in.options(at::kBool)).bernoulli_(p, generator)};
  });
  add_draws(cases, "normal", [](Inputs& in, Generator generator) {
    const Tensor mean = in.randn({30});
    const Tensor deviation = in.uniform({30}, 0.5, 2);
    return Tensors{at::normal(mean, 2.0, generator), at::normal(0.5, deviation, generator),
                   at::normal(mean, deviation, generator),
                   at::empty({30}, in.options()).normal_(1, 3, generator)};
  });
  add_draws(cases, "multinomial", [](Inputs& in, Generator generator) {
    const Tensor weights = in.uniform({3, 9}, 0.1, 1);
    return Tensors{at::multinomial(weights, 4, false, generator),
                   at::multinomial(weights, 20, true, generator)};
  });
  add_draws(cases, "distributions", [](Inputs& in, Generator generator) {
    Tensors results;
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const at::TensorOptions options = in.options(dtype);
      append(results, {at::empty({30}, options).uniform_(-1, 2, generator),
                       at::empty({30}, options).exponential_(1.5, generator),
                       at::empty({30}, options).log_normal_(0, 1, generator),
                       at::empty({30}, options).cauchy_(0, 1, generator),
                       at::empty({30}, options).geometric_(0.3, generator)});
    }
    return results;
  });
  add_draws(cases, "random_in_place", [](Inputs& in, Generator generator) {
    return Tensors{at::empty({30}, in.options(at::kLong)).random_(generator),
                   at::empty({30}, in.options()).random_(-4, 9, generator),
                   at::empty({30}, in.options(at::kByte)).random_(7, generator)};
  });
  add_draws(cases, "poisson_binomial", [](Inputs& in, Generator generator) {
    const Tensor rates = in.uniform({30}, 0.5, 6);
    return Tensors{at::poisson(rates, generator),
                   at::binomial(rates.round(), in.uniform({30}, 0.1, 0.9), generator),
                   at::_standard_gamma(rates, generator), at::_sample_dirichlet(rates, generator)};
  });
  cases.add("draws_like", [](Inputs& in) {
    torch::manual_seed(19);
    const Tensor x = in.randn({5, 8});
    return Tensors{at::randn_like(x), at::rand_like(x.t()), at::randint_like(x, 7),
                   at::rand_like(x, in.options(at::kDouble))};
  });
  cases.add("generator_state", [](Inputs& in) {
    at::Generator generator = in.generator(23);
    const Tensor first = at::randn({20}, generator, in.options());
    const Tensor state = generator.get_state();
    const Tensor second = at::randn({20}, generator, in.options());
    generator.set_state(state);
    const Tensor again = at::randn({20}, generator, in.options());
    return Tensors{first,
                   second,
                   again,
                   in.number(at::equal(second, again)),
                   at::rand({4}, generator.clone(), in.options()),
                   in.number(static_cast<double>(generator.current_seed()))};
  });
}

}  // namespace

void add_factory_cases(OpCases& cases) {
  add_constants(cases);
  add_random(cases);
}

}  // namespace accelerate::device_test
