/// Declarations of LibTorch's classes, for headers that mention them and need no more.
///
/// Threads: declarations alone.
#pragma once

namespace at {
class Tensor;
}  // namespace at

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace torch::nn {
class LinearImpl;
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim
