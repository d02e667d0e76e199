// What sources with LibTorch include besides.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace precompiled {

template <class... Modules>
void instantiate_modules() {
  instantiate_virtual_functions<torch::nn::Cloneable<Modules>...>();
}

template <class Options, class State>
void instantiate_optimizer() {
  instantiate_virtual_functions<torch::optim::OptimizerCloneableOptions<Options>,
                                torch::optim::OptimizerCloneableParamState<State>>();
}

inline void instantiate_libtorch() {
  instantiate_modules<
      torch::nn::AdaptiveLogSoftmaxWithLossImpl, torch::nn::BilinearImpl, torch::nn::Conv1dImpl,
      torch::nn::Conv2dImpl, torch::nn::Conv3dImpl, torch::nn::ConvTranspose1dImpl,
      torch::nn::ConvTranspose2dImpl, torch::nn::ConvTranspose3dImpl, torch::nn::CrossMapLRN2dImpl,
      torch::nn::EmbeddingBagImpl, torch::nn::EmbeddingImpl, torch::nn::FoldImpl,
      torch::nn::FractionalMaxPool2dImpl, torch::nn::FractionalMaxPool3dImpl,
      torch::nn::GRUCellImpl, torch::nn::GRUImpl, torch::nn::GroupNormImpl, torch::nn::LSTMCellImpl,
      torch::nn::LSTMImpl, torch::nn::LayerNormImpl, torch::nn::LinearImpl,
      torch::nn::LocalResponseNormImpl, torch::nn::LogSoftmaxImpl, torch::nn::ModuleDictImpl,
      torch::nn::MultiheadAttentionImpl, torch::nn::ParameterDictImpl, torch::nn::RNNCellImpl,
      torch::nn::RNNImpl, torch::nn::SequentialImpl, torch::nn::SoftmaxImpl, torch::nn::SoftminImpl,
      torch::nn::ThresholdImpl, torch::nn::TransformerDecoderImpl,
      torch::nn::TransformerDecoderLayerImpl, torch::nn::TransformerEncoderImpl,
      torch::nn::TransformerEncoderLayerImpl, torch::nn::UnflattenImpl, torch::nn::UnfoldImpl>();
  instantiate_optimizer<torch::optim::AdagradOptions, torch::optim::AdagradParamState>();
  instantiate_optimizer<torch::optim::AdamOptions, torch::optim::AdamParamState>();
  instantiate_optimizer<torch::optim::AdamWOptions, torch::optim::AdamWParamState>();
  instantiate_optimizer<torch::optim::LBFGSOptions, torch::optim::LBFGSParamState>();
  instantiate_optimizer<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>();
  instantiate_optimizer<torch::optim::SGDOptions, torch::optim::SGDParamState>();
  instantiate_virtual_functions<
      c10::EnumerationType<c10::TypeKind::LayoutType>,
      c10::EnumerationType<c10::TypeKind::MemoryFormatType>,
      c10::EnumerationType<c10::TypeKind::ScalarTypeType>,
      c10::SingleElementType<c10::TypeKind::AwaitType, c10::AwaitType>,
      c10::SingleElementType<c10::TypeKind::FutureType, c10::FutureType>,
      c10::SingleElementType<c10::TypeKind::ListType, c10::ListType>,
      c10::SingleElementType<c10::TypeKind::RRefType, c10::RRefType>,
      torch::data::datasets::Dataset<torch::data::datasets::MNIST>,
      torch::data::datasets::Dataset<torch::data::datasets::TensorDataset,
                                     torch::data::Example<at::Tensor, void>>,
      torch::jit::ScalarAttributeValue<c10::complex<double>, torch::jit::AttributeKind::c>,
      torch::jit::ScalarAttributeValue<double, torch::jit::AttributeKind::f>,
      torch::jit::ScalarAttributeValue<long, torch::jit::AttributeKind::i>,
      torch::jit::ScalarAttributeValue<std::basic_string<char>, torch::jit::AttributeKind::s>,
      torch::jit::VectorAttributeValue<at::Tensor, torch::jit::AttributeKind::ts>,
      torch::jit::VectorAttributeValue<c10::Type::SingletonOrSharedTypePtr<c10::Type>,
                                       torch::jit::AttributeKind::tys>,
      torch::jit::VectorAttributeValue<c10::complex<double>, torch::jit::AttributeKind::cs>,
      torch::jit::VectorAttributeValue<double, torch::jit::AttributeKind::fs>,
      torch::jit::VectorAttributeValue<long, torch::jit::AttributeKind::is>,
      torch::jit::VectorAttributeValue<std::basic_string<char>, torch::jit::AttributeKind::ss>,
      torch::nn::ConvNdImpl<1, torch::nn::Conv1dImpl>,
      torch::nn::ConvNdImpl<1, torch::nn::ConvTranspose1dImpl>,
      torch::nn::ConvNdImpl<2, torch::nn::Conv2dImpl>,
      torch::nn::ConvNdImpl<2, torch::nn::ConvTranspose2dImpl>,
      torch::nn::ConvNdImpl<3, torch::nn::Conv3dImpl>,
      torch::nn::ConvNdImpl<3, torch::nn::ConvTranspose3dImpl>,
      torch::nn::ConvTransposeNdImpl<1, torch::nn::ConvTranspose1dImpl>,
      torch::nn::ConvTransposeNdImpl<2, torch::nn::ConvTranspose2dImpl>,
      torch::nn::ConvTransposeNdImpl<3, torch::nn::ConvTranspose3dImpl>>();
}

}  // namespace precompiled
