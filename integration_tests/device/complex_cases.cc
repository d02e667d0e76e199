// Complex numbers and Fourier transforms. Conjugation and negation are lazy: flags of the tensor.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_arithmetic(OpCases& cases) {
  for (at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
    const std::string suffix = std::string("_") + c10::toString(dtype);
    cases.differentiable(
        "arithmetic" + suffix, {{4, 5}, {4, 5}},
        [](const Tensors& x) {
          return Tensors{x[0] + x[1], x[0] * x[1],    x[0] / x[1],    x[0].exp(),
                         x[0].sin(),  x[0].sigmoid(), x[0].sqrt(),    x[0].log(),
                         x[0].tanh(), x[0].square(),  x[0].pow(x[1]), x[0].reciprocal()};
        },
        dtype);
    cases.differentiable(
        "matmul" + suffix, {{4, 5}, {5, 3}}, [](const Tensors& x) { return x[0].matmul(x[1]); },
        dtype);
    cases.differentiable(
        "reduce" + suffix, {{4, 5}},
        [](const Tensors& x) {
          return Tensors{x[0].sum(), x[0].mean(1), x[0].prod(0), x[0].cumsum(1), x[0].norm()};
        },
        dtype);
  }
  cases.differentiable(
      "real_imag", {{4, 5}},
      [](const Tensors& x) { return Tensors{at::real(x[0]), at::imag(x[0]) * 2}; },
      at::kComplexFloat);
  cases.differentiable(
      "abs_angle", {{4, 5}},
      [](const Tensors& x) { return Tensors{x[0].abs(), x[0].angle(), x[0].sgn()}; },
      at::kComplexFloat);
  cases.differentiable("complex_polar", {{4, 5}, {4, 5}}, [](const Tensors& x) {
    return Tensors{at::complex(x[0], x[1]), at::polar(x[0].abs(), x[1])};
  });
  cases.differentiable("view_as_complex", {{4, 5, 2}}, [](const Tensors& x) {
    const Tensor z = at::view_as_complex(x[0]);
    return Tensors{z * z, at::view_as_real(z * 2)};
  });
  cases.add("comparisons_of_complex", [](Inputs& in) {
    const Tensor x = in.randn({6}, at::kComplexFloat);
    return Tensors{x == x.clone(), x != x.conj(), at::isreal(x), x.to(at::kComplexDouble)};
  });
}

void add_lazy_flags(OpCases& cases) {
  cases.differentiable(
      "conj", {{4, 5}, {5, 4}},
      [](const Tensors& x) {
        return Tensors{x[0].conj(),          x[0].conj().resolve_conj(), x[0].conj() + 1,
                       x[0].conj().mm(x[1]), x[0].mH().mm(x[0]),         x[0].conj_physical()};
      },
      at::kComplexFloat);
  cases.add("neg_bit", [](Inputs& in) {
    const Tensor lazy = at::imag(in.randn({4, 5}, at::kComplexFloat).conj());
    return Tensors{lazy, lazy.resolve_neg(), lazy + 1, lazy.mm(lazy.t()), lazy.clone()};
  });
  cases.add("conj_copy", [](Inputs& in) {
    const Tensor x = in.randn({4, 5}, at::kComplexFloat);
    Tensor copied = at::zeros_like(x);
    copied.copy_(x.conj());
    Tensor seen_through = x.clone();
    seen_through.conj().mul_(c10::complex<float>(0, 2));
    seen_through.conj().copy_(x);
    return Tensors{copied, seen_through, x.conj().t().contiguous(), at::cat({x.conj(), x})};
  });
  cases.add("view_as_real_of_conj", [](Inputs& in) {
    return at::view_as_real(in.randn({4, 5}, at::kComplexFloat).conj().resolve_conj());
  });
}

void add_fourier(OpCases& cases) {
  cases.differentiable("fft", {{3, 16}}, [](const Tensors& x) {
    return Tensors{at::fft_fft(x[0]), at::fft_ifft(x[0], 10), at::fft_fft(x[0], {}, 0, "ortho")};
  });
  cases.differentiable("rfft", {{3, 16}}, [](const Tensors& x) {
    const Tensor spectrum = at::fft_rfft(x[0]);
    return Tensors{spectrum, at::fft_irfft(spectrum, 16), at::fft_rfft(x[0]).conj() * 2};
  });
  cases.differentiable("fft2", {{3, 6, 9}}, [](const Tensors& x) {
    return Tensors{at::fft_fft2(x[0]), at::fft_ifft2(x[0]), at::fft_rfft2(x[0]),
                   at::fft_fftn(x[0])};
  });
  cases.differentiable(
      "hfft", {{3, 9}}, [](const Tensors& x) { return at::fft_hfft(x[0]); }, at::kComplexFloat);
  cases.differentiable("fftshift", {{3, 9}}, [](const Tensors& x) {
    return Tensors{at::fft_fftshift(x[0]), at::fft_ifftshift(x[0], {1})};
  });
  cases.add("fftfreq", [](Inputs& in) {
    return Tensors{at::fft_fftfreq(9, 0.5, in.options()), at::fft_rfftfreq(9, 0.5, in.options())};
  });
  cases.add("stft", [](Inputs& in) {
    const Tensor window = at::hann_window(16, in.options());
    const Tensor spectrum = at::stft(in.randn({2, 64}), 16, 4, 16, window, /*center=*/true,
                                     "reflect", /*normalized=*/false, /*onesided=*/true,
                                     /*return_complex=*/true);
    return Tensors{spectrum, at::istft(spectrum, 16, 4, 16, window)};
  });
}

}  // namespace

void add_complex_cases(OpCases& cases) {
  add_arithmetic(cases);
  add_lazy_flags(cases);
  add_fourier(cases);
}

}  // namespace accelerate::device_test
