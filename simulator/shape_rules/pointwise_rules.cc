// Element by element.
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

Dtype float_dtype(const Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)
             ? c10::typeMetaToScalarType(c10::get_default_dtype())
             : tensor.scalar_type();
}

Tensor same(const Tensor& self) { return elementwise(self.scalar_type(), {self}); }
Tensor predicate(const Tensor& self) { return elementwise(at::kBool, {self}); }
Tensor comparison(const Tensor& self, const Tensor& other) {
  return elementwise(at::kBool, {self, other});
}
Tensor absolute(const Tensor& self) {
  return elementwise(c10::toRealValueType(self.scalar_type()), {self});
}
Tensor angle(const Tensor& self) {
  return elementwise(c10::toRealValueType(float_dtype(self)), {self});
}
Tensor degrees(const Tensor& self) { return like(self, float_dtype(self)); }
Tensor mvlgamma(const Tensor& self) { return dense(self.sizes(), float_dtype(self)); }
Results frexp(const Tensor& self) { return {like(self), like(self, at::kInt)}; }
Tensor complex(const Tensor& real, const Tensor& imaginary) {
  return elementwise(c10::toComplexType(real.scalar_type()), {real, imaginary});
}

Tensor logit(const Tensor& self) { return elementwise(float_dtype(self), {self}); }

Tensor binary(const Tensor& self, const Tensor& other) {
  return elementwise(at::result_type(self, other), {self, other});
}
Tensor shift_by_number(const Tensor& self, const at::Scalar& by) {
  return elementwise(at::result_type(self, by), {self});
}
Tensor subtracted_from(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}
Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return elementwise(at::result_type(self, other), {condition, self, other});
}
Tensor addr(const Tensor& self, const Tensor& column, const Tensor& row) {
  const Dtype dtype = c10::promoteTypes(at::result_type(column, row), self.scalar_type());
  return elementwise(dtype, {self.expand({column.size(0), row.size(0)}), column.unsqueeze(1), row});
}

Tensor gradient(const Tensor& gradient, const Tensor& self) {
  return elementwise(gradient.scalar_type(), {gradient, self});
}
Results prelu_backward(const Tensor& gradient, const Tensor& self, const Tensor& weight) {
  return {elementwise(self.scalar_type(), {self, weight, gradient}),
          elementwise(weight.scalar_type(), {self, weight, gradient})};
}
Results twice(const Tensor& self) { return {like(self), like(self)}; }

Results fake_quantize(const Tensor& self) { return {like(self), like(self, at::kBool)}; }

Results native_dropout(const Tensor& input, double, std::optional<bool> train) {
  const Tensor mask = dense(input.sizes(), at::kBool);
  if (input.numel() == 0) return {input, like(input)};
  return {train.value_or(true) ? at::mul(input, mask) : input, mask};
}
Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask) {
  return at::mul(gradient, mask);
}

}  // namespace

Rules pointwise_rules() {
  return {
      {"abs", by<absolute>},
      {"angle", by<angle>},
      {"conj_physical.out relu hardtanh hardswish", by<same>},
      {"logit", by<logit>},
      {"rrelu_with_noise", by<contiguous_like>},
      {"deg2rad rad2deg", by<degrees>},
      {"nan_to_num", by<in_order>},
      {"logical_not isnan", by<predicate>},
      {"logical_and logical_or logical_xor", by<comparison>},
      {"frexp.Tensor", by<frexp>},
      {"complex polar", by<complex>},
      {"mvlgamma", by<mvlgamma>},
      {"__lshift__.Tensor __rshift__.Tensor __ilshift__.Tensor __irshift__.Tensor floor_divide",
       by<binary>},
      {"__lshift__.Scalar __rshift__.Scalar __ilshift__.Scalar __irshift__.Scalar",
       by<shift_by_number>},
      {"rsub.Tensor", by<subtracted_from>},
      {"where.self", by<where>},
      {"addr", by<addr>},

      {"_prelu_kernel log_sigmoid_backward", by<in_order>},
      {"_prelu_kernel_backward", by<prelu_backward>},
      {"hardtanh_backward hardswish_backward", by<gradient>},
      {"log_sigmoid_forward", by<twice>},
      {"glu_backward", by<second_contiguous>},
      {"fake_quantize_per_tensor_affine_cachemask "
       "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams "
       "fake_quantize_per_channel_affine_cachemask",
       by<fake_quantize>},

      {"native_dropout", by<native_dropout>},
      {"native_dropout_backward", by<native_dropout_backward>},
      {"poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad",
       by<contiguous_like>},

      // Optimizers, mixed precision, checks.
      {"_fused_adam_ _fused_adam_.tensor_lr _fused_adamw_ _fused_adamw_.tensor_lr _fused_sgd_ "
       "_fused_sgd_.tensor_lr _fused_adagrad_ _amp_foreach_non_finite_check_and_unscale_ "
       "_amp_update_scale_ _assert_async _assert_async.msg",
       by<into_arguments>},
  };
}

}  // namespace accelerate::simulator::shape_rules
