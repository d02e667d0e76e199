#include "accelerate/tensors/portable.h"

#include <array>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/example.h>

namespace user {

enum class Colour : uint16_t { kRed, kGreen = 700 };

struct Batch {
  at::Tensor images;
  std::vector<std::string> names;
  int made_here = 5;
};
auto tree_members(Batch& batch) { return std::tie(batch.images, batch.names); }

struct NotListed {
  at::Tensor hidden;
};

struct NotEmpty {
  explicit NotEmpty(int number) : number(number) {}
  int number;
};
auto tree_members(NotEmpty& value) { return std::tie(value.number); }

}  // namespace user

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

static_assert(Portable<std::map<std::string, std::vector<std::optional<at::Tensor>>>>);
static_assert(Portable<user::Batch> && Portable<std::vector<user::Batch>>);
static_assert(Portable<torch::data::Example<>> && Portable<torch::data::TensorExample>);
static_assert(!Portable<user::NotListed> && !Portable<user::NotEmpty> && !Portable<int*>);
static_assert(!Portable<std::vector<user::NotListed>>);
static_assert(!Portable<std::pair<int, user::NotListed>>);

// The value after serialisation, as the receiving rank reads it.
template <typename T>
T travelled(const T& value) {
  PortableWriter writer;
  write_portable(writer, value);
  PortableReader reader(writer.bytes());
  T arrived{};
  read_portable(reader, arrived);
  EXPECT_EQ(reader.tensors().size(), writer.tensors().size());
  for (size_t i = 0; i < reader.tensors().size(); ++i) {
    reader.tensors()[i].copy_(writer.tensors()[i]);
  }
  return arrived;
}

template <typename T>
void expect_travels(const T& value) {
  EXPECT_EQ(travelled(value), value);
}

at::Tensor numbers(int64_t begin, int64_t end) { return at::arange(begin, end); }

TEST(Portable, CarriesNumbersBooleansAndEnumerators) {
  expect_travels(-5);
  expect_travels(std::numeric_limits<uint64_t>::max());
  expect_travels('x');
  expect_travels(0.1);
  expect_travels(-0.1F);
  expect_travels(true);
  expect_travels(user::Colour::kGreen);
}

TEST(Portable, CarriesStringsWithAnyBytes) {
  expect_travels(std::string());
  expect_travels(std::string("\0a\0\xff", 4));
  expect_travels(std::string(100000, 'y'));
}

TEST(Portable, CarriesContainersAlsoEmptyOnes) {
  expect_travels(std::vector<int>{1, 2, 3});
  expect_travels(std::vector<std::vector<std::string>>{{}, {"a"}, {"b", ""}});
  expect_travels(std::vector<bool>{true, false, true});
  expect_travels(std::array<std::string, 2>{"a", "b"});
  expect_travels(std::pair<int, std::string>{1, "a"});
  expect_travels(std::tuple<>());
  expect_travels(std::tuple<int, std::optional<double>, bool>{1, 0.5, false});
  expect_travels(std::optional<std::vector<int>>());
  expect_travels(std::optional<std::optional<int>>(std::optional<int>()));
  expect_travels(std::map<std::string, std::vector<int>>{{"b", {1}}, {"a", {}}});
  expect_travels(std::map<std::pair<int, int>, std::string>{{{1, 2}, "x"}});
  expect_travels(std::map<int, int>());
}

TEST(Portable, ReplacesWhatIsThere) {
  PortableWriter writer;
  const std::tuple<std::vector<int>, std::optional<int>, std::map<int, int>> empty;
  write_portable(writer, empty);
  auto value = std::tuple(std::vector<int>{1}, std::optional<int>(2), std::map<int, int>{{3, 4}});
  PortableReader reader(writer.bytes());
  read_portable(reader, value);
  EXPECT_EQ(value, empty);
}

TEST(Portable, CarriesTensorsBesideTheBytes) {
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kByte, at::kBool,
                               at::kLong, at::kComplexDouble}) {
    const at::Tensor tensor = numbers(0, 6).reshape({2, 3}).to(dtype);
    const at::Tensor arrived = travelled(tensor);
    EXPECT_EQ(arrived.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(arrived, tensor)) << dtype;
  }
  EXPECT_TRUE(
      at::equal(travelled(numbers(0, 6).reshape({2, 3}).t()), numbers(0, 6).reshape({2, 3}).t()));
  EXPECT_EQ(travelled(at::scalar_tensor(2.5)).item<double>(), 2.5);
  EXPECT_EQ(travelled(at::zeros({3, 0, 2})).sizes(), (std::vector<int64_t>{3, 0, 2}));
  PortableWriter writer;
  write_portable(writer, at::zeros({1 << 20}));
  EXPECT_LT(writer.bytes().size(), 100);
}

TEST(Portable, CarriesUndefinedTensors) {
  EXPECT_FALSE(travelled(at::Tensor()).defined());
  using Tensors = std::vector<at::Tensor>;
  const Tensors arrived = travelled(Tensors{numbers(0, 1), at::Tensor(), numbers(1, 3)});
  EXPECT_FALSE(arrived[1].defined());
  EXPECT_TRUE(at::equal(arrived[2], numbers(1, 3)));
}

TEST(Portable, MakesTensorsOnTheGivenDevice) {
  PortableWriter writer;
  write_portable(writer, numbers(0, 3));
  PortableReader reader(writer.bytes());
  reader.set_device(c10::kMeta);
  EXPECT_TRUE(reader.read_tensor().is_meta());
}

TEST(Portable, CarriesTheMembersThatAStructLists) {
  user::Batch batch{numbers(0, 2), {"a", "b"}, 9};
  const user::Batch arrived = travelled(batch);
  EXPECT_TRUE(at::equal(arrived.images, batch.images));
  EXPECT_EQ(arrived.names, batch.names);
  EXPECT_EQ(arrived.made_here, 5) << "as the struct is made";
}

TEST(Portable, CarriesTorchsExamples) {
  using torch::data::Example;
  const auto arrived =
      travelled(std::vector<Example<at::Tensor, int>>{{numbers(0, 2), 3}, {numbers(2, 3), 4}});
  ASSERT_EQ(arrived.size(), 2);
  EXPECT_TRUE(at::equal(arrived[1].data, numbers(2, 3)));
  EXPECT_EQ(arrived[1].target, 4);
  EXPECT_TRUE(at::equal(travelled(torch::data::TensorExample(numbers(0, 2))).data, numbers(0, 2)));
}

TEST(Portable, CarriesIValues) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("tensors", c10::List<at::Tensor>({numbers(0, 2), numbers(2, 5)}));
  dict.insert("tuple",
              c10::ivalue::Tuple::create(numbers(5, 6), int64_t{5}, "text", c10::IValue()));
  dict.insert("sizes", c10::List<int64_t>({6, 7}));
  const auto arrived = travelled(c10::IValue(dict)).toGenericDict();
  EXPECT_TRUE(at::equal(arrived.at("tensors").toListRef()[1].toTensor(), numbers(2, 5)));
  const c10::IValue value = arrived.at("tuple");
  const auto& tuple = value.toTupleRef().elements();
  EXPECT_TRUE(at::equal(tuple[0].toTensor(), numbers(5, 6)));
  EXPECT_EQ(tuple[1].toInt(), 5);
  EXPECT_EQ(tuple[2].toStringRef(), "text");
  EXPECT_TRUE(tuple[3].isNone());
  EXPECT_THAT(arrived.at("sizes").toIntVector(), ElementsAre(6, 7));
  EXPECT_TRUE(travelled(c10::IValue()).isNone());
  using Mixed = std::tuple<at::Tensor, c10::IValue, at::Tensor>;
  const auto [before, middle, after] =
      travelled(Mixed{numbers(0, 1), c10::IValue(numbers(1, 2)), numbers(2, 3)});
  EXPECT_TRUE(at::equal(middle.toTensor(), numbers(1, 2)));
  EXPECT_TRUE(at::equal(after, numbers(2, 3)));
}

// As one object travels, with the tensors' data behind the bytes.
at::Tensor packed_and_unpacked(const at::Tensor& value) {
  PortableWriter writer;
  write_portable(writer, std::tuple(value, 5, value));
  PortableReader reader(std::move(writer).pack());
  std::tuple<at::Tensor, int, at::Tensor> arrived;
  read_portable(reader, arrived);
  reader.unpack();
  EXPECT_EQ(std::get<1>(arrived), 5);
  EXPECT_TRUE(at::equal(std::get<0>(arrived), std::get<2>(arrived)));
  return std::get<0>(arrived);
}

TEST(Portable, PacksTheNumbersThatTensorsShowInWhateverWayTheyLie) {
  const at::Tensor whole = numbers(0, 12).view({3, 4});
  for (const at::Tensor& value :
       {whole, whole.t(), whole.narrow(1, 1, 2), whole.select(0, 1), whole.expand({2, 3, 4}),
        at::_neg_view(whole.to(at::kFloat)), numbers(0, 0), at::ones({}, at::kBool)}) {
    EXPECT_TRUE(at::equal(packed_and_unpacked(value), value)) << value.sizes();
  }
  const at::Tensor complex = at::complex(at::ones({2}), at::ones({2}));
  EXPECT_TRUE(at::equal(packed_and_unpacked(complex.conj()),
                        at::complex(at::ones({2}), at::full({2}, -1.0))));
  EXPECT_FALSE(packed_and_unpacked(at::ones({2}).requires_grad_(true)).requires_grad());
}

TEST(Portable, RefusesToPackTensorsWithoutDataOfTheirOwn) {
  for (const at::Tensor& value : {at::empty({2}, at::kMeta), at::ones({2}).to_sparse()}) {
    PortableWriter writer;
    write_portable(writer, value);
    EXPECT_THROW(std::move(writer).pack(), c10::ValueError) << value.layout();
  }
}

TEST(Portable, ComplainsAboutDataThatEndsTooEarly) {
  PortableWriter writer;
  write_portable(writer, numbers(0, 4));
  const std::string bytes = std::move(writer).pack();
  PortableReader reader(bytes.substr(0, bytes.size() - 1));
  at::Tensor arrived;
  read_portable(reader, arrived);
  EXPECT_THROW(reader.unpack(), c10::Error);
}

// Wherever the bytes end, reading them is an error and no crash.
template <typename T>
void expect_no_prefix_is_enough(const T& value) {
  PortableWriter writer;
  write_portable(writer, value);
  const std::string& bytes = writer.bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    PortableReader reader(bytes.substr(0, size));
    T arrived{};
    EXPECT_THROW(read_portable(reader, arrived), c10::Error) << size << " of " << bytes.size();
  }
}

TEST(Portable, ComplainsAboutBytesThatEndTooEarly) {
  expect_no_prefix_is_enough(int64_t{5});
  expect_no_prefix_is_enough(std::string("text"));
  expect_no_prefix_is_enough(std::vector<std::string>{"a", "bc"});
  expect_no_prefix_is_enough(std::map<int, std::optional<int>>{{1, 2}, {3, {}}});
  expect_no_prefix_is_enough(std::tuple<at::Tensor, int>{numbers(0, 6).reshape({2, 3}), 1});
  expect_no_prefix_is_enough(c10::IValue(c10::ivalue::Tuple::create(numbers(0, 1), "text")));
}

TEST(Portable, ComplainsAboutASizeThatIsNone) {
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const std::string bytes(reinterpret_cast<const char*>(&huge), sizeof(huge));
  EXPECT_THROW(PortableReader(bytes).read_string(), c10::Error);
  std::vector<int> list;
  PortableReader reader(bytes);
  EXPECT_THROW(read_portable(reader, list), c10::Error);
}

}  // namespace
}  // namespace accelerate
