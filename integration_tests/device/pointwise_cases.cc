// Element by element: arithmetic, comparisons, special functions, and what dtype comes out.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

struct Unary {
  const char* name;
  Tensor (*function)(const Tensor&);
  double low = -2;  // the domain
  double high = 2;
};

// In every floating-point type, with strides, as a scalar, and its gradient.
void add_unary(OpCases& cases, const Unary& op) {
  cases.add(op.name, [op](Inputs& in) {
    Tensors results;
    for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      append(results, with_gradients(in, {in.uniform({5, 17}, op.low, op.high, dtype)},
                                     [&](const Tensors& x) { return as_list(op.function(x[0])); }));
      append(results, with_gradients(in, {in.uniform({}, op.low, op.high, dtype)},
                                     [&](const Tensors& x) { return as_list(op.function(x[0])); }));
    }
    results.push_back(op.function(in.uniform({40}, op.low, op.high, at::kBFloat16)));
    results.push_back(op.function(in.uniform({40}, op.low, op.high, at::kHalf)));
    results.push_back(op.function(in.uniform({6, 10}, op.low, op.high).t()));
    results.push_back(op.function(in.uniform({60}, op.low, op.high).slice(0, 1, 60, 3)));
    results.push_back(op.function(in.uniform({0, 3}, op.low, op.high)));
    return results;
  });
}

#define ACCELERATE_UNARY(op) #op, [](const Tensor& x) { return at::op(x); }

void add_unary_cases(OpCases& cases) {
  const Unary all[] = {
      {ACCELERATE_UNARY(abs)},
      {ACCELERATE_UNARY(neg)},
      {ACCELERATE_UNARY(sign)},
      {ACCELERATE_UNARY(sgn)},
      {ACCELERATE_UNARY(positive)},
      {ACCELERATE_UNARY(ceil)},
      {ACCELERATE_UNARY(floor)},
      {ACCELERATE_UNARY(round)},
      {ACCELERATE_UNARY(trunc)},
      {ACCELERATE_UNARY(frac)},
      {ACCELERATE_UNARY(square)},
      {ACCELERATE_UNARY(sqrt), 0.1, 3},
      {ACCELERATE_UNARY(rsqrt), 0.1, 3},
      {ACCELERATE_UNARY(reciprocal), 0.5, 3},
      {ACCELERATE_UNARY(exp)},
      {ACCELERATE_UNARY(exp2)},
      {ACCELERATE_UNARY(expm1)},
      {ACCELERATE_UNARY(log), 0.1, 3},
      {ACCELERATE_UNARY(log2), 0.1, 3},
      {ACCELERATE_UNARY(log10), 0.1, 3},
      {ACCELERATE_UNARY(log1p), -0.9, 3},
      {ACCELERATE_UNARY(sin)},
      {ACCELERATE_UNARY(cos)},
      {ACCELERATE_UNARY(tan), -1, 1},
      {ACCELERATE_UNARY(asin), -0.9, 0.9},
      {ACCELERATE_UNARY(acos), -0.9, 0.9},
      {ACCELERATE_UNARY(atan)},
      {ACCELERATE_UNARY(sinh)},
      {ACCELERATE_UNARY(cosh)},
      {ACCELERATE_UNARY(tanh)},
      {ACCELERATE_UNARY(asinh)},
      {ACCELERATE_UNARY(acosh), 1.1, 3},
      {ACCELERATE_UNARY(atanh), -0.9, 0.9},
      {ACCELERATE_UNARY(sigmoid)},
      {ACCELERATE_UNARY(sinc)},
      {ACCELERATE_UNARY(erf)},
      {ACCELERATE_UNARY(erfc)},
      {ACCELERATE_UNARY(erfinv), -0.9, 0.9},
      {ACCELERATE_UNARY(lgamma), 0.2, 4},
      {ACCELERATE_UNARY(digamma), 0.2, 4},
      {ACCELERATE_UNARY(rad2deg)},
      {ACCELERATE_UNARY(deg2rad)},
      {ACCELERATE_UNARY(i0)},
      {"logit", [](const Tensor& x) { return at::logit(x, 1e-6); }, 0.05, 0.95},
      {"nan_to_num", [](const Tensor& x) { return at::nan_to_num(at::sqrt(x), 7.0); }, -1, 1},
      {"polygamma", [](const Tensor& x) { return at::polygamma(2, x); }, 0.5, 4},
      {"pow_of_number", [](const Tensor& x) { return at::pow(2.5, x); }},
      {"pow_to_number", [](const Tensor& x) { return at::pow(x, 3); }},
      {"clamp", [](const Tensor& x) { return at::clamp(x, -0.5, 1); }},
      {"clamp_min", [](const Tensor& x) { return at::clamp_min(x, 0.25); }},
      {"clamp_max", [](const Tensor& x) { return at::clamp_max(x, 0.25); }},
      {"angle", [](const Tensor& x) { return at::angle(x); }},
      {"isfinite", [](const Tensor& x) { return at::isfinite(at::log(x)); }},
      {"isnan", [](const Tensor& x) { return at::isnan(at::log(x)); }},
      {"isinf", [](const Tensor& x) { return at::isinf(at::reciprocal(at::trunc(x))); }},
      {"isposinf", [](const Tensor& x) { return at::isposinf(at::reciprocal(at::trunc(x))); }},
      {"signbit", [](const Tensor& x) { return at::signbit(x); }},
      {"frexp", [](const Tensor& x) { return std::get<0>(at::frexp(x)); }, 0.5, 9},
      {"logical_not", [](const Tensor& x) { return at::logical_not(at::trunc(x)); }},
  };
  for (const Unary& op : all) add_unary(cases, op);
}

// Not in half precision: on the CPU they are for float and double only.
void add_special_cases(OpCases& cases) {
  const Unary all[] = {
      {ACCELERATE_UNARY(special_entr), 0.1, 3},
      {ACCELERATE_UNARY(special_ndtr)},
      {ACCELERATE_UNARY(special_ndtri), 0.05, 0.95},
      {ACCELERATE_UNARY(special_log_ndtr)},
      {ACCELERATE_UNARY(special_erfcx)},
      {ACCELERATE_UNARY(special_i0e)},
      {ACCELERATE_UNARY(special_i1)},
      {ACCELERATE_UNARY(special_i1e)},
      {ACCELERATE_UNARY(special_bessel_j0)},
      {ACCELERATE_UNARY(special_bessel_j1)},
      {ACCELERATE_UNARY(special_modified_bessel_k0), 0.2, 4},
      {ACCELERATE_UNARY(special_airy_ai)},
      {"mvlgamma", [](const Tensor& x) { return at::mvlgamma(x, 2); }, 2, 5},
  };
  for (const Unary& op : all) {
    cases.add(op.name, [op](Inputs& in) {
      Tensors results;
      for (at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        results.push_back(op.function(in.uniform({5, 17}, op.low, op.high, dtype)));
        results.push_back(op.function(in.uniform({6, 10}, op.low, op.high, dtype).t()));
      }
      return results;
    });
  }
}
#undef ACCELERATE_UNARY

struct Binary {
  const char* name;
  Tensor (*function)(const Tensor&, const Tensor&);
  bool differentiable = true;
};

#define ACCELERATE_BINARY(op) #op, [](const Tensor& x, const Tensor& y) { return at::op(x, y); }

// Alike sizes, broadcasting, a scalar that stays on the CPU, and low precision.
void add_binary_cases(OpCases& cases) {
  const Binary all[] = {
      {"add", [](const Tensor& x, const Tensor& y) { return at::add(x, y, 1.5); }},
      {"sub", [](const Tensor& x, const Tensor& y) { return at::sub(x, y, 0.5); }},
      {"rsub", [](const Tensor& x, const Tensor& y) { return at::rsub(x, y, 2); }},
      {ACCELERATE_BINARY(mul)},
      {ACCELERATE_BINARY(div)},
      {"div_floor", [](const Tensor& x, const Tensor& y) { return at::div(x, y, "floor"); }},
      {"div_trunc", [](const Tensor& x, const Tensor& y) { return at::div(x, y, "trunc"); }},
      {ACCELERATE_BINARY(floor_divide), false},
      {ACCELERATE_BINARY(remainder)},
      {ACCELERATE_BINARY(fmod)},
      {ACCELERATE_BINARY(pow)},
      {ACCELERATE_BINARY(maximum)},
      {ACCELERATE_BINARY(minimum)},
      {ACCELERATE_BINARY(fmax)},
      {ACCELERATE_BINARY(fmin)},
      {ACCELERATE_BINARY(atan2)},
      {ACCELERATE_BINARY(hypot)},
      {ACCELERATE_BINARY(logaddexp)},
      {ACCELERATE_BINARY(logaddexp2)},
      {ACCELERATE_BINARY(xlogy)},
      {ACCELERATE_BINARY(copysign)},
      {ACCELERATE_BINARY(eq), false},
      {ACCELERATE_BINARY(ne), false},
      {ACCELERATE_BINARY(lt), false},
      {ACCELERATE_BINARY(le), false},
      {ACCELERATE_BINARY(gt), false},
      {ACCELERATE_BINARY(ge), false},
      {ACCELERATE_BINARY(heaviside), false},
      {ACCELERATE_BINARY(logical_and), false},
      {ACCELERATE_BINARY(logical_or), false},
      {ACCELERATE_BINARY(logical_xor), false},
      {ACCELERATE_BINARY(isclose), false},
  };
  for (const Binary& op : all) {
    cases.add(op.name, [op](Inputs& in) {
      auto call = [&](const Tensors& x) { return as_list(op.function(x[0], x[1])); };
      auto run = [&](Tensor x, Tensor y) {
        return op.differentiable ? with_gradients(in, {x, y}, call) : call({x, y});
      };
      auto draw = [&](at::IntArrayRef size, at::ScalarType dtype = at::kFloat) {
        return in.uniform(size, 0.5, 3, dtype);
      };
      Tensors results;
      append(results, run(draw({4, 9}), draw({4, 9})));
      append(results, run(draw({3, 1, 5}, at::kDouble), draw({4, 1}, at::kDouble)));
      append(results, run(draw({9, 4}).t(), draw({4, 9})));
      append(results, call({draw({33}, at::kBFloat16), draw({33}, at::kBFloat16)}));
      append(results, call({draw({7}), at::scalar_tensor(1.25, at::kFloat)}));
      return results;
    });
  }
}
#undef ACCELERATE_BINARY

void add_integer_cases(OpCases& cases) {
  cases.add("integer_arithmetic", [](Inputs& in) {
    Tensors results;
    for (at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
      const Tensor x = in.integers({23}, 0, 100, dtype);
      const Tensor y = in.integers({23}, 1, 9, dtype);
      append(results, {x + y, x - y, x * y, x / y, at::floor_divide(x, y), at::remainder(x, y),
                       at::pow(x, 2), at::maximum(x, y), x < y, at::div(x, y, "trunc"), at::abs(x),
                       at::clamp(x, 3, 50), at::sqrt(x)});
    }
    return results;
  });
  cases.add("gcd_lcm", [](Inputs& in) {
    const Tensor x = in.integers({23}, 1, 1000);
    const Tensor y = in.integers({23}, 1, 1000);
    return Tensors{at::gcd(x, y), at::lcm(x, y)};
  });
  cases.add("bitwise", [](Inputs& in) {
    const Tensor x = in.integers({31}, -500, 500, at::kInt);
    const Tensor y = in.integers({31}, 0, 8, at::kInt);
    return Tensors{x & y,
                   x | y,
                   x ^ y,
                   ~x,
                   at::bitwise_left_shift(x, y),
                   at::bitwise_right_shift(x, y),
                   at::__lshift__(x, 2),
                   at::__rshift__(x, 1),
                   x & 12};
  });
  cases.add("booleans", [](Inputs& in) {
    const Tensor x = in.booleans({31});
    const Tensor y = in.booleans({31});
    return Tensors{x & y, x | y,  x ^ y,         ~x, at::logical_not(x), x + y,
                   x * 2, x == y, x.to(at::kInt)};
  });
}

void add_promotion_cases(OpCases& cases) {
  cases.add("promotion_of_tensors", [](Inputs& in) {
    const at::ScalarType dtypes[] = {at::kBool, at::kByte,     at::kInt,   at::kLong,
                                     at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
    Tensors results;
    for (at::ScalarType left : dtypes) {
      for (at::ScalarType right : dtypes) {
        results.push_back(in.integers({5}, 0, 5, left) * in.integers({5}, 0, 5, right));
      }
    }
    return results;
  });
  cases.add("promotion_with_numbers", [](Inputs& in) {
    Tensors results;
    for (at::ScalarType dtype : {at::kBool, at::kInt, at::kHalf, at::kBFloat16, at::kDouble}) {
      const Tensor x = in.integers({5}, 0, 5, dtype);
      append(results,
             {x + 1, x * 2.5, x / 2, x > 1, 1.5 - x.to(at::kInt), x + c10::complex<float>(0, 1)});
    }
    return results;
  });
  cases.add("promotion_with_scalar_tensors", [](Inputs& in) {
    Tensors results;
    const Tensor on_cpu = at::scalar_tensor(2.5, at::kDouble);
    const Tensor on_device = in.number(2.5).squeeze();
    for (at::ScalarType dtype : {at::kInt, at::kHalf, at::kFloat}) {
      const Tensor x = in.integers({5}, 0, 5, dtype);
      append(results, {x * on_cpu, x + on_device, at::where(x > 1, x, on_device), x * x[1],
                       on_device * on_cpu});
    }
    return results;
  });
  cases.add("gradient_through_promotion", [](Inputs& in) {
    return with_gradients(in,
                          {in.randn({4}, at::kHalf), in.randn({3, 4}), in.randn({}, at::kDouble)},
                          [](const Tensors& x) { return Tensors{(x[0] + x[1]) * x[2]}; });
  });
  cases.add("to_dtype", [](Inputs& in) {
    const Tensor x = in.uniform({37}, -20, 20);
    Tensors results;
    for (at::ScalarType dtype : {at::kBool, at::kChar, at::kInt, at::kLong, at::kHalf,
                                 at::kBFloat16, at::kDouble, at::kComplexFloat}) {
      append(results, {x.to(dtype), x.to(dtype).to(at::kFloat).add(1, 1)});
    }
    return results;
  });
}

void add_ternary_cases(OpCases& cases) {
  cases.differentiable("addcmul", {{4, 5}, {4, 5}, {5}},
                       [](const Tensors& x) { return at::addcmul(x[0], x[1], x[2], 0.5); });
  cases.differentiable("addcdiv", {{4, 5}, {4, 5}, {5}}, [](const Tensors& x) {
    return at::addcdiv(x[0], x[1], x[2].square() + 1, 0.5);
  });
  cases.differentiable("lerp_tensor", {{4, 5}, {4, 5}, {4, 5}},
                       [](const Tensors& x) { return at::lerp(x[0], x[1], x[2]); });
  cases.differentiable("lerp_number", {{4, 5}, {4, 5}},
                       [](const Tensors& x) { return at::lerp(x[0], x[1], 0.3); });
  cases.differentiable("where", {{4, 5}, {4, 5}, {5}},
                       [](const Tensors& x) { return at::where(x[0] > 0, x[1], x[2]); });
  cases.differentiable("where_with_numbers", {{4, 5}}, [](const Tensors& x) {
    return Tensors{at::where(x[0] > 0, x[0], 0.5), at::where(x[0] > 0, 2, 1.5)};
  });
  cases.differentiable("clamp_by_tensors", {{4, 5}, {5}, {4, 1}},
                       [](const Tensors& x) { return at::clamp(x[0], x[1], x[2]); });
  cases.add("isin", [](Inputs& in) {
    const Tensor x = in.integers({4, 6}, 0, 20);
    return Tensors{at::isin(x, in.indices({1, 5, 7, 19})), at::isin(x, 3)};
  });
  cases.add("gammainc", [](Inputs& in) {
    const Tensor a = in.uniform({20}, 0.5, 5);
    const Tensor x = in.uniform({20}, 0.5, 5);
    return Tensors{at::special_gammainc(a, x), at::special_gammaincc(a, x),
                   at::special_zeta(a + 1, x)};
  });
  cases.add("ldexp_nextafter", [](Inputs& in) {
    const Tensor x = in.randn({20});
    return Tensors{at::ldexp(x, in.integers({20}, -4, 5, at::kInt)),
                   at::nextafter(x, in.randn({20})), at::float_power(x.abs(), 1.5)};
  });
  cases.add("chained_in_bfloat16", [](Inputs& in) {
    const Tensor x = in.randn({65}, at::kBFloat16);
    return ((x * 3 + 1).exp() - x.sigmoid()).tanh() / (x.abs() + 1);
  });
}

}  // namespace

void add_pointwise_cases(OpCases& cases) {
  add_unary_cases(cases);
  add_special_cases(cases);
  add_binary_cases(cases);
  add_integer_cases(cases);
  add_promotion_cases(cases);
  add_ternary_cases(cases);
}

}  // namespace accelerate::device_test
