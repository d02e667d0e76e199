#include "accelerate/forward/forward_call.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// fn(a call of forward with the inputs)
template <typename Fn, typename Forward, typename... Inputs>
auto with_call(Fn fn, Forward forward, Inputs&&... inputs) {
  ForwardCallOf<Forward, Inputs...> call(forward, std::forward<Inputs>(inputs)...);
  return fn(call);
}

Tensor number(double value) { return torch::full({1}, value); }

std::vector<double> numbers(const Tensors& tensors) {
  std::vector<double> values;
  for (const Tensor& each : tensors) values.push_back(each.item<double>());
  return values;
}

constexpr auto kRun = [](auto& call) {
  call.run(std::nullopt);
  return call.take_output();
};

// ---- Inputs and outputs as trees.

TEST(ForwardCall, SeesTheTensorsOfNestedInputsInOrder) {
  const Tensors list{number(1), number(2)};
  const std::map<std::string, Tensor> map{{"b", number(4)}, {"a", number(3)}};
  const auto tuple = std::tuple(number(5), 7, std::pair(number(6), std::string("name")));
  const std::optional<Tensor> given = number(8), none;
  const Tensors seen = with_call([](auto& call) { return call.inputs().tensors(); },
                                 [](const auto&...) { return 0; }, list, map, tuple, given, none);
  EXPECT_THAT(numbers(seen), ElementsAre(1, 2, 3, 4, 5, 6, 8));
}

TEST(ForwardCall, PassesReplacedTensorsInTheSamePlaces) {
  const Tensors list{number(1), number(2)};
  const std::map<std::string, Tensor> map{{"b", number(4)}, {"a", number(3)}};
  const auto tuple = std::tuple(number(5), 7, std::optional<Tensor>(number(6)));
  const auto forward = [](const Tensors& list, const std::map<std::string, Tensor>& map,
                          const std::tuple<Tensor, int, std::optional<Tensor>>& tuple) {
    EXPECT_EQ(std::get<1>(tuple), 7);
    return Tensors{list.at(0),  list.at(1),         map.at("a"),
                   map.at("b"), std::get<0>(tuple), *std::get<2>(tuple)};
  };
  const Tensors passed = with_call(
      [](auto& call) {
        Tensors tensors = call.inputs().tensors();
        for (Tensor& each : tensors) each = each * 10;
        call.inputs().set_tensors(std::move(tensors));
        return kRun(call);
      },
      forward, list, map, tuple);
  EXPECT_THAT(numbers(passed), ElementsAre(10, 20, 30, 40, 50, 60));
  // What the caller keeps is as it was.
  EXPECT_THAT(numbers(list), ElementsAre(1, 2));
  EXPECT_EQ(map.at("a").item<double>(), 3);
  EXPECT_EQ(std::get<0>(tuple).item<double>(), 5);
}

TEST(ForwardCall, ReplacesTensorsOfDynamicValuesInTheCallAlone) {
  const c10::IValue list(c10::List<Tensor>({number(1), number(2)}));
  const Tensor sum = with_call(
      [](auto& call) {
        call.inputs().set_tensors({number(3), number(4)});
        return kRun(call);
      },
      [](const c10::IValue& value) {
        return value.toTensorList().get(0) + value.toTensorList().get(1);
      },
      list);
  EXPECT_EQ(sum.item<double>(), 7);
  EXPECT_EQ(list.toTensorList().get(0).item<double>(), 1);
}

TEST(ForwardCall, ReplacesTensorsOfTheOutput) {
  const auto [first, name, rest] = with_call(
      [](auto& call) {
        EXPECT_THAT(call.outputs().tensors(), IsEmpty());
        call.run(std::nullopt);
        Tensors tensors = call.outputs().tensors();
        for (Tensor& each : tensors) each = each + 1;
        call.outputs().set_tensors(std::move(tensors));
        return call.take_output();
      },
      [](const Tensor& x) { return std::tuple(x, std::string("kept"), Tensors{x * 2}); },
      number(1));
  EXPECT_EQ(first.item<double>(), 2);
  EXPECT_EQ(name, "kept");
  EXPECT_THAT(numbers(rest), ElementsAre(3));
}

TEST(ForwardCall, RefusesAnotherNumberOfTensors) {
  const auto replace_by = [](Tensors tensors) {
    try {
      with_call([&tensors](auto& call) { call.inputs().set_tensors(tensors); },
                [](const Tensors& /*list*/) { return 0; }, Tensors{number(1), number(2)});
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("none");
  };
  EXPECT_THAT(replace_by({number(1)}), HasSubstr("has 2 tensors here, and 1 were given"));
  EXPECT_THAT(replace_by(Tensors(3, number(1))), HasSubstr("and 3 were given"));
  EXPECT_EQ(replace_by({number(3), number(4)}), "none");
}

TEST(ForwardCall, SendsInputsButForSkippedKeys) {
  const std::map<std::string, Tensor> batch{{"moved", number(1)}, {"stays", number(2)}};
  with_call(
      [](auto& call) {
        EXPECT_EQ(call.inputs().find_device(), c10::Device(c10::kCPU));
        call.inputs().send_to_device(c10::kMeta, {.skip_keys = {"stays"}});
        call.run(std::nullopt);
      },
      [](const std::map<std::string, Tensor>& batch) {
        EXPECT_TRUE(batch.at("moved").is_meta());
        EXPECT_TRUE(batch.at("stays").is_cpu());
      },
      batch);
  EXPECT_TRUE(batch.at("moved").is_cpu());
}

TEST(ForwardCall, FindsTheDeviceOfTheFirstTensorThatIsThere) {
  const auto device_of = [](const Tensors& tensors) {
    return with_call([](auto& call) { return call.inputs().find_device(); },
                     [](const Tensors& /*list*/) { return 0; }, tensors);
  };
  const Tensor elsewhere = number(1).to(c10::kMeta);
  EXPECT_EQ(device_of({Tensor(), elsewhere, number(1)}), c10::Device(c10::kMeta));
  EXPECT_EQ(device_of({Tensor()}), std::nullopt);
}

// ---- Kinds of arguments.

TEST(ForwardCall, PassesTheCallersOwnObjectsWhereNothingIsReplaced) {
  const Tensor x = number(1);
  Tensors list{number(2)};
  const std::string name = "name";
  const auto* const own = &x;
  with_call(
      [](auto& call) {
        EXPECT_EQ(call.inputs().tensors().size(), 2);
        call.run(std::nullopt);
      },
      [&](const Tensor& a, Tensors& b, const std::string& c) {
        EXPECT_EQ(&a, own);
        EXPECT_EQ(&b, &list);
        EXPECT_EQ(&c, &name);
      },
      x, list, name);
}

TEST(ForwardCall, ChangesTheCallersArgumentThatForwardFills) {
  Tensors filled{number(1)};
  const Tensor x = number(5);
  with_call(
      [](auto& call) {
        call.inputs().set_tensors({number(6), number(2)});
        call.run(std::nullopt);
      },
      [](const Tensor& x, Tensors& filled) { filled.push_back(x); }, x, filled);
  EXPECT_THAT(numbers(filled), ElementsAre(2, 6));
  EXPECT_EQ(x.item<double>(), 5);
}

TEST(ForwardCall, CopiesAnLvalueThatForwardDoesNotChange) {
  Tensor x = number(1);
  const Tensor y = with_call(
      [](auto& call) {
        call.inputs().set_tensors({number(2)});
        return kRun(call);
      },
      [](const Tensor& given) { return given; }, x);
  EXPECT_EQ(y.item<double>(), 2);
  EXPECT_EQ(x.item<double>(), 1);
}

TEST(ForwardCall, MovesWhatIsMovedOnly) {
  auto owned = std::make_unique<int>(3);
  const Tensor y = with_call(
      [](auto& call) {
        call.inputs().set_tensors({number(2)});
        return kRun(call);
      },
      [](std::unique_ptr<int> number, const std::unique_ptr<int>& other, Tensor x) {
        return x * *number * *other;
      },
      std::make_unique<int>(5), owned, number(1));
  EXPECT_EQ(y.item<double>(), 30);
  EXPECT_EQ(*owned, 3);
}

TEST(ForwardCall, LeavesTuplesOfReferencesAlone) {
  Tensor x = number(1);
  const Tensor y = with_call(
      [](auto& call) {
        EXPECT_THAT(call.inputs().tensors(), IsEmpty());
        call.run(at::kHalf);
        return call.take_output();
      },
      [](const std::tuple<Tensor&>& tie) { return std::get<0>(tie); }, std::tie(x));
  EXPECT_TRUE(y.is_same(x));
  EXPECT_EQ(x.scalar_type(), at::kFloat);
}

TEST(ForwardCall, ReturnsAValueOfAReference) {
  const Tensor kept = number(4);
  const Tensor y = with_call(kRun, [&kept]() -> const Tensor& { return kept; });
  EXPECT_TRUE(y.is_same(kept));
}

// ---- Dtypes.

TEST(ForwardCall, CastsFloatingPointTensorsForTheRunAlone) {
  const Tensor x = number(1);
  const std::map<std::string, Tensor> batch{{"ids", torch::ones({1}, torch::kLong)},
                                            {"values", torch::ones({1}, torch::kDouble)}};
  with_call(
      [](auto& call) {
        const auto dtypes = [&call] {
          std::vector<at::ScalarType> found;
          for (const Tensor& each : call.inputs().tensors()) found.push_back(each.scalar_type());
          return found;
        };
        call.run(at::kBFloat16);
        EXPECT_THAT(call.take_output(),
                    ElementsAre(at::kBFloat16, at::kLong, at::kBFloat16, at::kBFloat16));
        EXPECT_THAT(dtypes(), ElementsAre(at::kFloat, at::kLong, at::kDouble, at::kFloat));
        call.run(std::nullopt);
        EXPECT_THAT(call.take_output(),
                    ElementsAre(at::kFloat, at::kLong, at::kDouble, at::kFloat));
      },
      [](const Tensor& x, const std::map<std::string, Tensor>& batch, const Tensor& last) {
        return std::vector<at::ScalarType>{x.scalar_type(), batch.at("ids").scalar_type(),
                                           batch.at("values").scalar_type(), last.scalar_type()};
      },
      x, batch, number(2));
}

TEST(ForwardCall, CastsWhatWasReplaced) {
  const Tensor y = with_call(
      [](auto& call) {
        call.inputs().set_tensors({torch::full({2, 3}, 5.0)});
        call.run(at::kHalf);
        return call.take_output();
      },
      [](const Tensor& x) { return x; }, number(1));
  EXPECT_EQ(y.scalar_type(), at::kHalf);
  EXPECT_THAT(y.sizes(), ElementsAre(2, 3));
  EXPECT_EQ(y[0][0].item<double>(), 5);
}

// ---- Runs.

TEST(ForwardCall, RunsAgainWithOtherInputs) {
  std::vector<double> results;
  with_call(
      [&](auto& call) {
        for (const double value : {1, 2, 3}) {
          call.inputs().set_tensors({number(value)});
          call.run(std::nullopt);
          results.push_back(call.outputs().tensors().at(0).template item<double>());
        }
      },
      [](const Tensor& x) { return x * x; }, number(0));
  EXPECT_THAT(results, ElementsAre(1, 4, 9));
}

TEST(ForwardCall, HasNoOutputAfterAnException) {
  with_call(
      [](auto& call) {
        EXPECT_THROW(call.run(std::nullopt), std::domain_error);
        EXPECT_THAT(call.outputs().tensors(), IsEmpty());
        EXPECT_THROW(call.take_output(), c10::Error);
        call.inputs().set_tensors({number(1)});
        EXPECT_EQ(kRun(call).template item<double>(), 1);
      },
      [](const Tensor& x) {
        if (x.item<double>() == 0) throw std::domain_error("zero");
        return x;
      },
      number(0));
}

TEST(ForwardCall, KeepsTheOutputOfAnEarlierRunAfterAnException) {
  with_call(
      [](auto& call) {
        call.run(std::nullopt);
        call.inputs().set_tensors({number(0)});
        EXPECT_THROW(call.run(std::nullopt), std::domain_error);
        EXPECT_THAT(numbers(call.outputs().tensors()), ElementsAre(5));
        EXPECT_EQ(call.take_output().template item<double>(), 5);
      },
      [](const Tensor& x) {
        if (x.item<double>() == 0) throw std::domain_error("zero");
        return x;
      },
      number(5));
}

TEST(ForwardCall, GivesValuesAsRvaluesWithWithForwardCall) {
  auto forward = [](Tensors list, std::string name) {
    list.push_back(torch::ones({static_cast<int64_t>(name.size())}));
    return list;
  };
  std::tuple values(Tensors{number(1)}, std::string("four"));
  const Tensors output = with_forward_call(forward, values, [](auto& call) {
    call.inputs().set_tensors({number(2)});
    return kRun(call);
  });
  ASSERT_EQ(output.size(), 2);
  EXPECT_EQ(output[0].item<double>(), 2);
  EXPECT_EQ(output[1].numel(), 4);
}

}  // namespace
}  // namespace accelerate
