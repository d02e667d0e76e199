// Tensors without values: what is hollow, what is unknown, and what equals a run with values.
#include "simulator/device/shapes.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = int64_t{1} << 20;

using Program = std::function<void(Rank&)>;

void run(const Program& program, UnknownValue unknown_value = nullptr,
         Numerics numerics = Numerics::kShapes) {
  Cluster cluster("1x1:h100", {.numerics = numerics, .unknown_value = std::move(unknown_value)});
  cluster.run_on_every_rank(program);
}

template <typename Error>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "no error of that type";
  return "";
}

at::Tensor small(Rank& rank, std::vector<int64_t> sizes = {8}) {
  return at::ones(sizes, rank.runtime().device());
}

// 1 MiB.
at::Tensor large(Rank& rank) { return at::ones({512, 512}, rank.runtime().device()); }

TEST(Hollow, TensorsAreThoseOfMoreThan64KiB) {
  run([](Rank& rank) {
    const DeviceMemory& memory = rank.device()->memory();
    const at::Tensor real = at::ones({16 * 1024}, rank.runtime().device());
    EXPECT_TRUE(has_values(real));
    EXPECT_EQ(real.sum().item<float>(), 16 * 1024);
    EXPECT_EQ(memory.in_use(), 64 * 1024);
    const at::Tensor hollow = at::ones({16 * 1024 + 1}, rank.runtime().device());
    EXPECT_TRUE(is_hollow(hollow));
    EXPECT_EQ(memory.in_use(), 2 * 64 * 1024 + 512);
    EXPECT_EQ(memory.allocator()->figures().reserved, 2 * kMebibyte);
  });
}

TEST(Hollow, TensorsMayExceedTheHostsMemory) {
  run([](Rank& rank) {
    // 64 GiB.
    const at::Tensor weight = at::ones({131072, 131072}, rank.runtime().device());
    EXPECT_TRUE(is_hollow(weight));
    EXPECT_EQ(rank.device()->memory().in_use(), int64_t{64} << 30);
    EXPECT_THROW(at::ones({131072, 131072}, rank.runtime().device()), c10::OutOfMemoryError);
  });
}

// What ranks have on the CPU is real.
TEST(Hollow, LeavesARankAGibibyteOnTheHost) {
  run([](Rank&) {
    const auto on_host = [](int64_t bytes) { return at::empty({bytes}, at::kByte); };
    at::Tensor most = on_host((int64_t{1} << 30) - kMebibyte);
    EXPECT_THAT(error_of<c10::Error>([&] { on_host(2 * kMebibyte); }),
                HasSubstr("where a rank may have 1.00 GiB on the CPU"));
    EXPECT_NO_THROW(on_host(kMebibyte / 2));
    // What was freed may be had again.
    most.reset();
    EXPECT_NO_THROW(on_host(512 * kMebibyte));
  });
}

TEST(Hollow, IsAnOptionOfDevices) {
  EXPECT_THROW(Cluster("2x4", {.numerics = Numerics::kShapes}), c10::ValueError);
}

TEST(Hollow, TensorsShareMemoryLikeOthers) {
  run([](Rank& rank) {
    at::Tensor tensor = large(rank);
    const int64_t in_use = rank.device()->memory().in_use();
    for (const at::Tensor& view : {tensor.view({-1}), tensor.t(), tensor.narrow(0, 1, 2), tensor[3],
                                   tensor.view(at::kInt), tensor.detach()}) {
      EXPECT_TRUE(view.is_alias_of(tensor));
      EXPECT_TRUE(is_hollow(view));
    }
    const void* const before = tensor.data_ptr();
    EXPECT_TRUE(tensor.add_(1).is_same(tensor));
    EXPECT_TRUE(tensor.t().relu_().is_alias_of(tensor));
    EXPECT_EQ(tensor.data_ptr(), before);
    EXPECT_EQ(rank.device()->memory().in_use(), in_use);
  });
}

TEST(Hollow, ResultsGoWhereTheCallerWants) {
  run([](Rank& rank) {
    const at::Tensor tensor = large(rank);
    at::Tensor out = at::empty_like(tensor);
    const void* const before = out.data_ptr();
    at::add_out(out, tensor, tensor);
    EXPECT_EQ(out.data_ptr(), before);
    at::Tensor resized = at::empty({0}, tensor.options());
    at::mm_out(resized, tensor, tensor);
    EXPECT_EQ(resized.sizes(), tensor.sizes());
    EXPECT_TRUE(is_hollow(resized));
    EXPECT_EQ(rank.device()->memory().in_use(), 3 * kMebibyte);
  });
}

TEST(Hollow, StoragesAreSetAndResized) {
  run([](Rank& rank) {
    at::Tensor tensor = small(rank);
    tensor.resize_({512, 512});
    EXPECT_TRUE(is_hollow(tensor));
    EXPECT_EQ(rank.device()->memory().in_use(), kMebibyte);
    tensor.resize_({1024, 512});
    EXPECT_EQ(rank.device()->memory().in_use(), 2 * kMebibyte);
    at::Tensor other = small(rank);
    other.set_(tensor);
    EXPECT_TRUE(is_hollow(other));
    other.set_();
    EXPECT_TRUE(has_values(other));
  });
}

TEST(Hollow, LargeResultsOfSmallTensors) {
  run([](Rank& rank) {
    const at::Tensor column = small(rank, {512, 1});
    const at::Tensor product = column * column.t();
    EXPECT_TRUE(is_hollow(product));
    EXPECT_EQ(product.sizes(), (std::vector<int64_t>{512, 512}));
    // 1 GiB, which the host does not compute.
    const at::Tensor longer = small(rank, {16384, 1});
    EXPECT_TRUE(is_hollow(longer * longer.t()));
    EXPECT_TRUE(is_hollow(at::mm(longer, longer.t())));
  });
}

TEST(Hollow, CopiesOfTheHost) {
  run([](Rank& rank) {
    const at::Tensor host = at::ones({512, 512});
    const at::Tensor copied = host.to(rank.runtime().device());
    EXPECT_TRUE(is_hollow(copied));
    EXPECT_TRUE(has_values(at::ones({4}).to(rank.runtime().device())));
    at::Tensor row = small(rank, {512});
    row.copy_(copied[0]);
    EXPECT_FALSE(has_values(row));
    row.copy_(host[0]);
    EXPECT_EQ(row.sum().item<float>(), 512);
  });
}

TEST(Unknown, IsWhatDependsOnHollowTensors) {
  run([](Rank& rank) {
    const at::Tensor loss = large(rank).mean();
    EXPECT_FALSE(is_hollow(loss));
    EXPECT_FALSE(has_values(loss));
    EXPECT_FALSE(has_values(loss * 2));
    EXPECT_FALSE(has_values(at::stack({loss, at::ones_like(loss)})));
    EXPECT_FALSE(has_values(small(rank).mul_(loss)));
    at::Tensor counter = small(rank);
    counter += 1;
    EXPECT_EQ(counter[0].item<float>(), 2);
  });
}

TEST(Unknown, EndsWhenTheWholeMemoryIsOverwritten) {
  run([](Rank& rank) {
    at::Tensor loss = large(rank).mean();
    at::Tensor pair = at::stack({loss, loss});
    loss.zero_();
    EXPECT_EQ(loss.item<float>(), 0);
    pair[0].zero_();
    EXPECT_FALSE(has_values(pair));
    pair.fill_(3);
    EXPECT_EQ(pair[1].item<float>(), 3);
    at::Tensor sum = large(rank).mean();
    at::add_out(sum, loss, loss);
    EXPECT_EQ(sum.item<float>(), 0);
    large(rank).mean(at::kFloat);
    at::mean_out(sum, large(rank).view({-1}), 0);
    EXPECT_FALSE(has_values(sum));
  });
}

TEST(Unknown, ValuesAreErrorsThatNameOperatorRankStepAndOption) {
  run([](Rank& rank) {
    const at::Tensor tensor = large(rank);
    EXPECT_THAT(
        error_of<c10::ValueError>([&] { tensor.mean().item<float>(); }),
        AllOf(HasSubstr("aten::_local_scalar_dense on rank 0 in step 0"), HasSubstr("sim:0 (h100)"),
              HasSubstr("numerics = shapes"), HasSubstr("--simulate_unknown_values nan")));
    EXPECT_THAT(error_of<c10::ValueError>([&] { tensor.cpu(); }),
                HasSubstr("copy to host on rank 0"));
    EXPECT_THAT(error_of<c10::NotImplementedError>([&] { at::equal(tensor, tensor.clone()); }),
                AllOf(HasSubstr("aten::equal on rank 0"), HasSubstr("numerics = shapes")));
  });
}

TEST(Unknown, ValuesAreTheCallersChoice) {
  std::vector<std::string> asked;
  run(
      [](Rank& rank) {
        const at::Tensor tensor = large(rank);
        EXPECT_EQ(tensor.mean().item<float>(), 7);
        const at::Tensor host = tensor.cpu();
        EXPECT_EQ(host.sizes(), tensor.sizes());
        EXPECT_EQ(host.sum().item<float>(), 7 * 512 * 512);
        EXPECT_EQ(tensor.argmax().item<int64_t>(), 7);
        EXPECT_TRUE(tensor.all().item<bool>());
      },
      [&asked](const std::string& operation) {
        asked.push_back(operation);
        return 7;
      });
  EXPECT_THAT(asked, ::testing::Contains("copy to host"));
  EXPECT_THAT(asked, ::testing::Contains("aten::_local_scalar_dense"));
}

TEST(Unknown, IntegersHaveNoNan) {
  run(
      [](Rank& rank) {
        const at::Tensor tensor = large(rank);
        EXPECT_TRUE(std::isnan(tensor.mean().item<float>()));
        EXPECT_EQ(tensor.argmax().item<int64_t>(), 0);
        EXPECT_FALSE(tensor.to(at::kBool).cpu().any().item<bool>());
      },
      [](const std::string&) { return std::numeric_limits<double>::quiet_NaN(); });
}

// Operators of the test's own: one without a Meta kernel, and one like a gradient scaler's.
void register_own_operators() {
  static auto& library = []() -> torch::Library& {
    auto& made =
        *new torch::Library(torch::Library::DEF, "shapes_test", std::nullopt, __FILE__, __LINE__);
    made.def("twice(Tensor x) -> Tensor");
    made.def("unscale_(Tensor(a!) grad, Tensor(b!) found_inf) -> ()");
    made.impl("twice",
              torch::dispatch(c10::DispatchKey::CPU, [](const at::Tensor& x) { return x + x; }));
    const auto unscale = [](const at::Tensor& grad, const at::Tensor& found_inf) {
      if (!grad.is_meta()) found_inf.fill_(at::isfinite(grad).all().logical_not());
    };
    made.impl("unscale_", torch::dispatch(c10::DispatchKey::CPU, unscale));
    made.impl("unscale_", torch::dispatch(c10::DispatchKey::Meta, unscale));
    return made;
  }();
  static_cast<void>(library);
}

c10::OperatorHandle own_operator(const char* name) {
  register_own_operators();
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

TEST(ShapeRules, AreNamedWhereTheyLack) {
  run([](Rank& rank) {
    const auto twice = own_operator("shapes_test::twice").typed<at::Tensor(const at::Tensor&)>();
    EXPECT_EQ(twice.call(small(rank)).sum().item<float>(), 16);
    EXPECT_THAT(error_of<c10::NotImplementedError>([&] { twice.call(large(rank)); }),
                HasSubstr("numerics = shapes has no shape rule for shapes_test::twice"));
  });
}

TEST(Gradients, WithoutValuesAreFinite) {
  run([](Rank& rank) {
    const auto unscale =
        own_operator("shapes_test::unscale_").typed<void(const at::Tensor&, const at::Tensor&)>();
    const at::Tensor found_inf = at::zeros({1}, rank.runtime().device());
    const at::Tensor unknown = at::ones({4}, rank.runtime().device()).mul_(large(rank).mean());
    unscale.call(large(rank), found_inf);
    unscale.call(unknown, found_inf);
    EXPECT_EQ(found_inf.item<float>(), 0);
    unscale.call(at::full({4}, INFINITY, rank.runtime().device()), found_inf);
    EXPECT_EQ(found_inf.item<float>(), 1);
  });
}

TEST(HostMemory, IsLimitedToAGibibyteForEachRank) {
  run([](Rank& rank) {
    constexpr int64_t k600MiB = 600 * kMebibyte;
    at::Tensor first = at::empty({k600MiB}, at::kByte);
    EXPECT_THAT(error_of<c10::Error>([] { at::empty({k600MiB}, at::kByte); }),
                AllOf(HasSubstr("rank 0 has 600.00 MiB of tensors on the CPU"),
                      HasSubstr("numerics = shapes"), HasSubstr("DefaultDeviceScope")));
    first.reset();
    at::empty({k600MiB}, at::kByte);
  });
}

TEST(SparseTensors, WithoutValuesAreNotSupported) {
  run([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const at::Tensor indices = at::arange(512, at::TensorOptions(device).dtype(at::kLong));
    const at::Tensor sparse = at::sparse_coo_tensor(indices.unsqueeze(0), large(rank));
    EXPECT_THAT(error_of<c10::NotImplementedError>([&] { sparse.mul(2); }),
                AllOf(HasSubstr("aten::mul on rank 0's sim:0"), HasSubstr("numerics = shapes")));
  });
}

// What a program costs.
struct Cost {
  int64_t host_ns = 0;
  int64_t stream_ns = 0;
  int64_t in_use = 0;
  int64_t peak = 0;
  bool operator==(const Cost&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.host_ns << " ns of the host, " << cost.stream_ns << " ns of the stream, "
             << cost.in_use << " bytes in use, peak " << cost.peak;
}

// The cost of what `program` does and keeps.
Cost cost_of(Numerics numerics, const std::function<at::Tensor(const at::Tensor&)>& program) {
  Cost cost;
  run(
      [&](Rank& rank) {
        const at::Tensor input = at::rand({256, 256}).to(rank.runtime().device());
        const at::Tensor kept = program(input);
        const SimDevice& device = *rank.device();
        const DeviceMemory& memory = rank.device()->memory();
        cost = {.host_ns = device.host_ns(),
                .stream_ns = device.stream_ns(0),
                .in_use = memory.in_use(),
                .peak = memory.peak()};
      },
      [](const std::string&) { return 0.5; }, numerics);
  return cost;
}

struct CostCase {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> program;
};

TEST(Cost, EqualsThatOfARunWithValues) {
  using T = const at::Tensor&;
  const std::vector<CostCase> cases = {
      {"mm", [](T x) { return at::mm(x, x); }},
      {"addmm", [](T x) { return at::addmm(x[0], x, x); }},
      {"pointwise", [](T x) { return (x + 1).mul(x).tanh_(); }},
      {"broadcast", [](T x) { return x.narrow(1, 0, 1) * x[0]; }},
      {"sum", [](T x) { return x.sum(); }},
      {"softmax", [](T x) { return at::softmax(x, -1); }},
      // The CPU copies it through a buffer.
      {"layout", [](T x) { return x.t().contiguous().view({-1}); }},
      {"cast", [](T x) { return x.to(at::kHalf); }},
      {"cat", [](T x) { return at::cat({x, x[0].unsqueeze(0)}); }},
      {"compare", [](T x) { return x.gt(0.5); }},
      {"in place", [](T x) { return x.clone().add_(1).relu_().zero_(); }},
      {"foreach",
       [](T x) {
         at::Tensor copy = x.clone();
         at::_foreach_mul_({copy, copy[0]}, 2);
         return copy;
       }},
      {"factory", [](T x) { return at::arange(100'000, x.options()); }},
      {"item", [](T x) { return at::full({4}, x.mean().item<double>(), x.options()); }},
      {"to host", [](T x) { return x.cpu(); }},
      {"reduction", [](T x) { return std::get<0>(x.max(1)); }},
  };
  for (const CostCase& one : cases) {
    EXPECT_EQ(cost_of(Numerics::kShapes, one.program), cost_of(Numerics::kReal, one.program))
        << one.name;
  }
}

}  // namespace
}  // namespace accelerate::simulator
