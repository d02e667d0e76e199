/// How much arithmetic an operator does, from its arguments' shapes.
///
/// Matrix products, convolutions, attention and recurrent layers have formulas; everything else is
/// bound by the bytes it moves. A fused multiply-add counts two; complex arithmetic counts four
/// times as much.
#pragma once

#include <string>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "simulator/hardware/device_model.h"

namespace accelerate::simulator {

/// FLOP of one call with these arguments.
using FlopFormula = double (*)(c10::ArrayRef<c10::IValue> arguments);

/// The formula of "aten::mm", ...; null for operators that are bound by bytes.
FlopFormula flop_formula(const std::string& name);

/// Which of a device's peak rates arithmetic on this dtype runs at.
MathType math_type(c10::ScalarType dtype);

}  // namespace accelerate::simulator
