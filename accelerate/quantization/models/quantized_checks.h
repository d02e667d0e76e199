/// What a prepared model with quantised weights may be: its codes are frozen, and what is beside
/// them, such as adapters, is trained where they are.
///
/// Local. Threads: the rank's thread.
#pragma once

namespace accelerate {

struct TechniqueContext;

/// Nothing, but for a model that is prepared to be trained.
/// Errors: c10::ValueError for a quantised parameter that requires gradients, by name; for a
///         quantised model that is on the host or the disk in a job on devices, on several devices
///         in a job of several ranks, or on another device than the rank's. They name the rank or
///         the placement.
void check_quantized_model(const TechniqueContext& context);

}  // namespace accelerate
