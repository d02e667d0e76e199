#include "accelerate/tensors/tree_operations.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;

using Tensors = std::vector<at::Tensor>;

c10::IValue list_of(std::vector<c10::IValue> entries) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (c10::IValue& entry : entries) list.push_back(std::move(entry));
  return list;
}

at::Tensor negated(const at::Tensor& tensor) { return -tensor; }

TEST(RecursivelyApply, AppliesToWhatPassesTheTest) {
  const Tensors data{at::ones({1}), at::ones({1}, at::kLong)};
  const RecursivelyApplyOptions integers{.test_type = [](const c10::IValue& leaf) {
    return leaf.isTensor() && leaf.toTensor().scalar_type() == at::kLong;
  }};
  const Tensors applied = recursively_apply(negated, data, integers);
  EXPECT_TRUE(applied[0].is_same(data[0]));
  EXPECT_EQ(applied[1].item<int64_t>(), -1);
}

TEST(RecursivelyApply, NamesTheTypeOfAnotherLeaf) {
  auto message = [](const auto& data) -> std::string {
    try {
      recursively_apply(negated, data, {.error_on_other_type = true});
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_THAT(message(list_of({at::ones({1}), "text"})), HasSubstr("a leaf of type str "));
  EXPECT_THAT(message(list_of({c10::IValue()})), HasSubstr("a leaf of type NoneType "));
  EXPECT_THAT(message(std::pair(at::ones({1}), 3)), HasSubstr("a leaf of type int "));
  EXPECT_EQ(message(list_of({at::ones({1}), list_of({})})), "no error");
  // Otherwise other leaves are passed through.
  EXPECT_EQ(recursively_apply(negated, std::pair(at::ones({1}), 3)).second, 3);
}

TEST(RecursivelyApply, TakesLeavesOfAnyTypeInDynamicValues) {
  auto doubled = [](const c10::IValue& leaf) -> c10::IValue { return leaf.toInt() * 2; };
  const c10::IValue data = list_of({1, c10::List<int64_t>({2, 3}), "text"});
  EXPECT_EQ(recursively_apply(doubled, data,
                              {.test_type = [](const c10::IValue& leaf) { return leaf.isInt(); }}),
            list_of({2, c10::List<int64_t>({4, 6}), "text"}));
}

TEST(FindBatchSize, IsThatOfTheFirstTensorWithRows) {
  EXPECT_EQ(find_batch_size(Tensors{at::Tensor(), at::ones({}), at::ones({3, 2}), at::ones({4})}),
            3);
  EXPECT_EQ(find_batch_size(list_of({"text", at::ones({5})})), 5);
  EXPECT_EQ(ignorant_find_batch_size(Tensors{at::ones({})}), std::nullopt);
  EXPECT_EQ(ignorant_find_batch_size(std::string("no tensor")), std::nullopt);
  EXPECT_THROW(find_batch_size(Tensors()), c10::ValueError);
  EXPECT_THROW(find_batch_size(c10::IValue()), c10::ValueError);
}

TEST(FindDevice, IsThatOfTheFirstTensor) {
  EXPECT_EQ(find_device(Tensors{at::Tensor(), at::ones({1})}), c10::Device(c10::kCPU));
  EXPECT_EQ(find_device(list_of({3})), std::nullopt);
}

TEST(SendToDevice, SkipsKeysAtAnyDepth) {
  const at::Tensor tensor = at::ones({2});
  using Inner = std::map<std::string, at::Tensor>;
  const std::map<std::string, Inner> data{{"a", {{"x", tensor}, {"skipped", tensor}}},
                                          {"skipped", {{"x", tensor}}}};
  const auto sent = send_to_device(data, c10::kMeta, {.skip_keys = {"skipped"}});
  EXPECT_TRUE(sent.at("a").at("x").is_meta());
  EXPECT_TRUE(sent.at("a").at("skipped").is_same(tensor));
  EXPECT_TRUE(sent.at("skipped").at("x").is_same(tensor));
  EXPECT_FALSE(data.at("a").at("x").is_meta());
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("a", list_of({tensor, 3}));
  dict.insert("skipped", tensor);
  const auto moved =
      send_to_device(c10::IValue(dict), c10::kMeta, {.skip_keys = {"skipped"}}).toGenericDict();
  EXPECT_TRUE(moved.at("a").toListRef()[0].toTensor().is_meta());
  EXPECT_TRUE(moved.at("skipped").toTensor().is_same(tensor));
  EXPECT_TRUE(send_to_device(tensor, c10::kCPU).is_same(tensor));
  EXPECT_FALSE(send_to_device(at::Tensor(), c10::kCPU).defined());
}

// A tokenizer's output, say.
struct Encoding {
  at::Tensor ids;
  bool waits = true;
  Encoding to(c10::Device device, bool non_blocking = false) const {
    return {ids.to(device), !non_blocking};
  }
};

TEST(SendToDevice, LetsAnObjectMoveItself) {
  namespace rnn = torch::nn::utils::rnn;
  const std::pair data(rnn::pack_sequence({at::ones({3}), at::ones({2})}),
                       std::vector<Encoding>{{at::ones({2})}, {at::ones({1})}});
  const auto [packed, encodings] = send_to_device(data, c10::kMeta);
  EXPECT_TRUE(packed.data().is_meta());
  EXPECT_TRUE(packed.batch_sizes().is_cpu()) << "as PackedSequence has it";
  ASSERT_EQ(encodings.size(), 2u);
  for (const Encoding& encoding : encodings) {
    EXPECT_TRUE(encoding.ids.is_meta());
    EXPECT_TRUE(encoding.waits);
  }
  EXPECT_TRUE(data.second[0].ids.is_cpu());
  EXPECT_FALSE(send_to_device(data.second[0], c10::kMeta, {.non_blocking = true}).waits);
  const std::map<std::string, Encoding> named{{"skipped", data.second[0]}};
  EXPECT_TRUE(
      send_to_device(named, c10::kMeta, {.skip_keys = {"skipped"}}).at("skipped").ids.is_cpu());
}

TEST(ConvertToFp32, ConvertsHalfPrecisionOnly) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    EXPECT_EQ(convert_to_fp32(at::ones({1}, dtype)).scalar_type(), at::kFloat);
  }
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kLong, at::kBool}) {
    EXPECT_EQ(convert_to_fp32(at::ones({1}, dtype)).scalar_type(), dtype);
  }
  auto forward = [](const at::Tensor& x) { return std::pair(x.to(at::kHalf), 7); };
  auto wrapped = convert_outputs_to_fp32(forward);
  EXPECT_EQ(wrapped(at::ones({1})).first.scalar_type(), at::kFloat);
  EXPECT_EQ(wrapped(at::ones({1})).second, 7);
  EXPECT_EQ(wrapped.model_forward()(at::ones({1})).first.scalar_type(), at::kHalf);
}

TEST(SliceTensors, CutsRowsAsPythonDoes) {
  const at::Tensor rows = at::arange(5);
  EXPECT_TRUE(at::equal(slice_tensors(rows, {.start = 1, .stop = 4}), at::arange(1, 4)));
  EXPECT_TRUE(at::equal(slice_tensors(rows, {.start = -2}), at::arange(3, 5)));
  EXPECT_TRUE(at::equal(slice_tensors(rows, {.stop = 99, .step = 2}), at::tensor({0, 2, 4})));
  EXPECT_EQ(slice_tensors(std::pair(rows, 3), {.stop = 1}).second, 3);
  EXPECT_TRUE(at::equal(slice_tensors(rows, {.start = 3}, /*process_index=*/1, /*num_processes=*/2),
                        at::arange(3, 5)));
  EXPECT_THROW(slice_tensors(at::ones({}), {.stop = 1}), c10::ValueError);
  EXPECT_THROW(slice_tensors(rows, {.step = 0}), c10::ValueError);
}

TEST(PadInputTensors, RepeatsTheLastRowUpToAMultiple) {
  const at::Tensor batch = at::arange(9);
  EXPECT_TRUE(at::equal(pad_input_tensors(batch, 9, 2), at::cat({batch, at::tensor({8})})));
  EXPECT_TRUE(at::equal(pad_input_tensors(at::tensor({5}), 1, 4), at::full({4}, 5)));
  EXPECT_TRUE(pad_input_tensors(batch, 9, 3).is_same(batch));
  EXPECT_EQ(pad_input_tensors(at::ones({2, 3}), 3, 2, -1).sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(pad_input_tensors(at::ones({0, 2}), 0, 2).size(0), 0);
  EXPECT_THROW(pad_input_tensors(batch, 8, 2), c10::ValueError);
  EXPECT_THROW(pad_input_tensors(batch, 9, 0), c10::ValueError);
  EXPECT_THROW(pad_input_tensors(batch, 9, 2, 1), c10::ValueError);
  EXPECT_THROW(pad_input_tensors(std::string("x"), 9, 2), c10::ValueError);
}

TEST(DataStructure, HasShapesAndDtypesAndBecomesTensorsAgain) {
  using Tree = std::map<std::string, std::pair<at::Tensor, int>>;
  const Tree data{{"a", {at::ones({2, 3}, at::kBFloat16), 7}}, {"b", {at::Tensor(), 8}}};
  const Tree structure = get_data_structure(data);
  EXPECT_TRUE(is_tensor_information(structure.at("a").first));
  EXPECT_FALSE(is_tensor_information(data.at("a").first));
  EXPECT_EQ(tensor_information(structure.at("a").first),
            (TensorInformation{.shape = {2, 3}, .dtype = at::kBFloat16}));
  const Tree made = initialize_tensors(structure);
  EXPECT_EQ(made.at("a").first.device(), c10::Device(c10::kCPU));
  EXPECT_EQ(tensor_information(made.at("a").first), tensor_information(data.at("a").first));
  EXPECT_EQ(made.at("a").second, 7);
  EXPECT_FALSE(made.at("b").first.defined());
}

TEST(DataStructure, OfDynamicValues) {
  const c10::IValue data = c10::List<at::Tensor>({at::ones({2}), at::ones({}, at::kLong)});
  const c10::IValue made = initialize_tensors(get_data_structure(data));
  EXPECT_EQ(made.toTensorVector().at(1).scalar_type(), at::kLong);
}

TEST(TensorInformation, NeedsATensor) {
  EXPECT_THROW(tensor_information(at::Tensor()), c10::ValueError);
}

TEST(TreeOperations, KnowTensorsAndTheirDevices) {
  EXPECT_TRUE(is_torch_tensor(at::ones({1})));
  EXPECT_FALSE(is_torch_tensor(c10::IValue(3)));
  EXPECT_FALSE(is_torch_xpu_tensor(at::ones({1})));
  EXPECT_FALSE(is_torch_xpu_tensor(at::Tensor()));
  // A tensor's keys say where it is; making one of them needs no device.
  const at::Tensor xpu = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::XPU), caffe2::TypeMeta::Make<float>(),
      c10::Device(c10::kXPU, 0));
  EXPECT_TRUE(is_torch_xpu_tensor(xpu));
}

}  // namespace
}  // namespace accelerate
