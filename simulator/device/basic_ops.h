/// The operators that every device must bring itself: making tensors, copying, sharing storages.
#pragma once

#include <torch/library.h>

namespace accelerate::simulator {

/// `library` implements PrivateUse1.
void register_basic_ops(torch::Library& library);

/// What Module::to needs to give a parameter other storage; for PrivateUse1 and its autograd key.
void register_set_data_check(torch::Library& library);

}  // namespace accelerate::simulator
