#include "accelerate/swap/swapped_tensors.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/managed_storage.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

// The machine's disk. One of the reads and writes of scratch files can fail, or all from one on.
class FailingFiles final : public ForwardingFiles {
 public:
  explicit FailingFiles(FileSystem& files) : ForwardingFiles(files) {}

  static constexpr int kNever = std::numeric_limits<int>::max();
  int fails_at = kNever, fails_until = kNever;
  std::atomic<int> operations = 0;

  absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string& path) override {
    auto file = ForwardingFiles::open_scratch(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*this, *std::move(file));
  }

 private:
  class File final : public ScratchFile {
   public:
    File(FailingFiles& files, std::unique_ptr<ScratchFile> file)
        : files_(files), file_(std::move(file)) {}
    absl::Status read_at(int64_t offset, absl::Span<std::byte> out) override {
      const absl::Status status = files_.next("read");
      return status.ok() ? file_->read_at(offset, out) : status;
    }
    absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
      const absl::Status status = files_.next("write");
      return status.ok() ? file_->write_at(offset, data) : status;
    }

   private:
    FailingFiles& files_;
    const std::unique_ptr<ScratchFile> file_;
  };

  absl::Status next(const char* what) {
    const int number = operations++;
    if (number < fails_at || number >= fails_until) return absl::OkStatus();
    return absl::DataLossError(std::string("cannot ") + what + " the file: input/output error");
  }
};

class DiskRuntime final : public FakeRuntime {
 public:
  DiskRuntime() : FakeRuntime({.rank = 3, .world_size = 4}) {}
  FileSystem& files() override { return failing; }

  TemporaryFolder folder;
  HostFiles disk;
  FailingFiles failing{disk};
};

Tensor numbers(int64_t count, double first) {
  return torch::arange(first, first + static_cast<double>(count), torch::kFloat);
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SwappedTensorsTest, OperatorsFindTheValuesOneTensorAtATime) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path("made/here")});
  const Tensor first = disk.move("first", numbers(6, 1).view({2, 3}));
  const Tensor second = disk.move("second", numbers(5000, 10));
  EXPECT_TRUE(is_absent(first) && is_absent(second));
  EXPECT_TRUE(disk.has(first.narrow(0, 1, 1)));
  EXPECT_FALSE(disk.has(numbers(1, 0)));
  EXPECT_EQ(first.sum().item<double>(), 21);
  EXPECT_TRUE(torch::equal(second, numbers(5000, 10)));
  EXPECT_TRUE(is_absent(first));
  // What an operator changes stays, also through a view.
  first.narrow(0, 1, 1).mul_(2);
  EXPECT_EQ(second[4].item<float>(), 14);
  EXPECT_TRUE(is_absent(first));
  EXPECT_EQ(first.sum().item<double>(), 36);
  EXPECT_TRUE(torch::equal(disk.copy_of(first.view({6})), first.reshape({6})));
  // Both at once.
  second.narrow(0, 0, 6).view({2, 3}).copy_(first);
  EXPECT_EQ(second[5].item<float>(), 12);
  const Tensor nothing = disk.move("nothing", torch::empty({0, 4}));
  EXPECT_EQ(nothing.sum().item<double>(), 0);
}

TEST(SwappedTensorsTest, ATensorThatMovesStaysTheSame) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor parameter = numbers(4, 0).set_requires_grad(true);
  const Tensor same = parameter;
  disk.move_in_place("parameter", parameter);
  EXPECT_TRUE(is_absent(same));
  EXPECT_TRUE(same.requires_grad());
  (same * 2).sum().backward();
  EXPECT_TRUE(torch::equal(same.grad(), torch::full({4}, 2.)));
  EXPECT_THAT(error_of([&] { disk.move_in_place("sparse", torch::ones({2, 2}).to_sparse()); }),
              HasSubstr("sparse"));
}

TEST(SwappedTensorsTest, TensorsThatAreFreedLeaveTheirPlaceInTheFile) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  for (int i = 0; i < 3; ++i) {
    const Tensor tensor = disk.move("tensor", numbers(5000, i));
    EXPECT_EQ(disk.traffic().file_bytes, 5 * 4096);
  }
  EXPECT_EQ(disk.traffic().file_bytes, 0);
  EXPECT_EQ(disk.traffic().bytes_written, 3 * 20000);
}

TEST(SwappedTensorsTest, TensorsOutliveWhatMovedThem) {
  DiskRuntime runtime;
  Tensor tensor;
  {
    SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
    tensor = disk.move("tensor", numbers(3, 5));
    disk.begin_round({{tensor}});
    disk.swap_in(0);
    tensor.add_(1);
    disk.swap_out(0);
  }
  EXPECT_TRUE(torch::equal(tensor, numbers(3, 6)));
}

TEST(SwappedTensorsTest, TensorsOfARoundMayGoBeforeTheNextOneIsExpected) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor stays = disk.move("stays", numbers(3, 0));
  std::vector<SwappedTensors::Part> parts = {{disk.move("goes", numbers(5000, 1))}, {stays}};
  disk.begin_round(parts);
  for (const size_t part : {0, 1}) {
    disk.swap_in(part);
    disk.swap_out(part);
  }
  parts.clear();
  const Tensor comes = disk.move("comes", numbers(5000, 2));
  disk.expect_round();
  disk.begin_round({{comes}, {stays}});
  for (const size_t part : {0, 1}) {
    disk.swap_in(part);
    disk.swap_out(part);
  }
  EXPECT_TRUE(torch::equal(comes, numbers(5000, 2)));
  EXPECT_TRUE(torch::equal(stays, numbers(3, 0)));
}

// Rounds that change all tensors, and operators between them.
TEST(SwappedTensorsTest, PartsComeAndGoWithHoweverManyBuffers) {
  for (const int buffers : {1, 2, 3, 7}) {
    for (const int pipelines : {0, 1, 2, 3}) {
      DiskRuntime runtime;
      SwappedTensors disk(runtime, {.folder = runtime.folder.path(),
                                    .buffer_count = buffers,
                                    .block_bytes = buffers % 2 == 0 ? 1000 : 0,
                                    .blocks_in_flight = pipelines == 2 ? 1 : 3,
                                    .pipeline_read = (pipelines & 1) != 0,
                                    .pipeline_write = (pipelines & 2) != 0});
      std::vector<Tensor> expected, tensors;
      std::vector<SwappedTensors::Part> parts(5);
      for (int i = 0; i < 10; ++i) {
        expected.push_back(numbers(100 + 300 * i, i));
        tensors.push_back(disk.move("tensor", expected.back().clone()));
        parts[static_cast<size_t>(i) % 5].push_back(tensors.back());
      }
      parts[2].push_back(numbers(3, 0));  // in memory
      for (int round = 0; round < 4; ++round) {
        disk.begin_round(parts);
        for (size_t part = 0; part < parts.size(); ++part) {
          disk.swap_in(part);
          for (const Tensor& each : parts[part]) {
            EXPECT_FALSE(is_absent(each));
            const UnwatchedOperators unwatched;
            each.mul_(3).sub_(1);
          }
          disk.swap_out(part);
          EXPECT_TRUE(is_absent(parts[part][0]));
        }
        if (round != 1) disk.expect_round();
        for (Tensor& each : expected) each.mul_(3).sub_(1);
        // Also of a tensor that is in a buffer already for the next round.
        tensors[0].add_(round);
        expected[0].add_(round);
        EXPECT_TRUE(torch::equal(tensors[0], expected[0])) << buffers << " " << pipelines;
      }
      const int64_t read = disk.traffic().bytes_read;
      disk.finish();
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(torch::equal(tensors[i], expected[i])) << buffers << " " << pipelines;
      }
      EXPECT_EQ(disk.traffic().buffer_bytes, std::min(buffers, 5) * (4096 * 2 + 4096 * 3));
      if (buffers == 7) EXPECT_LT(read, disk.traffic().bytes_written / 2);
    }
  }
}

TEST(SwappedTensorsTest, PartsOfARoundMayBeOthersThanBefore) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  Tensor a = disk.move("a", numbers(10, 0)), b = disk.move("b", numbers(2000, 1));
  const auto add = [&](const std::vector<SwappedTensors::Part>& parts) {
    disk.begin_round(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      disk.swap_in(i);
      for (const Tensor& each : parts[i]) each.add_(1);
      disk.swap_out(i);
    }
  };
  add({{a}, {b}});
  add({{b}});
  add({});
  add({{b, a}});
  EXPECT_TRUE(torch::equal(a, numbers(10, 2)));
  EXPECT_TRUE(torch::equal(b, numbers(2000, 4)));
  // One goes while a buffer holds it, and another takes its place in the file.
  a = disk.move("c", numbers(10, 7));
  add({{a}, {b}});
  EXPECT_TRUE(torch::equal(a, numbers(10, 8)));
  EXPECT_TRUE(torch::equal(b, numbers(2000, 5)));
}

TEST(SwappedTensorsTest, TensorsAreFetchedInAnyOrderAndStoredBehind) {
  for (const int buffers : {1, 2, 3}) {
    DiskRuntime runtime;
    SwappedTensors disk(runtime, {.folder = runtime.folder.path(), .buffer_count = buffers});
    std::vector<SwappedTensors::Part> parts;
    for (int i = 0; i < 4; ++i) {
      parts.push_back({disk.move("a", numbers(100 + 2000 * i, i)), disk.move("b", numbers(3, 7))});
    }
    for (const size_t part : {0, 1, 3, 2, 2, 0, 3}) {
      disk.expect(parts[(part + 1) % 4]);  // not always the one that comes
      disk.expect(parts[part]);
      const std::vector<Tensor> values = disk.fetch(parts[part]);
      EXPECT_TRUE(torch::equal(values[0], numbers(values[0].numel(), static_cast<double>(part))));
      EXPECT_TRUE(torch::equal(values[1], numbers(3, 7)));
    }
    for (int round = 1; round < 4; ++round) {
      for (const SwappedTensors::Part& part : parts) {
        disk.store(part[1].narrow(0, 1, 2), torch::full({2}, round, torch::kFloat));
      }
      for (const SwappedTensors::Part& part : parts) {
        EXPECT_EQ(disk.fetch(part)[1][2].item<float>(), round);
      }
    }
    disk.finish();
    EXPECT_EQ(parts[2][1].sum().item<double>(), 7 + 3 + 3);
  }
}

TEST(SwappedTensorsTest, AStoreThatFailsLosesTheTensor) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor tensor = disk.move("tensor", numbers(3, 5));
  runtime.failing.fails_at = runtime.failing.operations;
  runtime.failing.fails_until = runtime.failing.fails_at + 1;
  disk.store(tensor, numbers(3, 6));
  EXPECT_THAT(error_of([&] { disk.fetch({tensor}); }), HasSubstr("cannot write the file"));
  EXPECT_THAT(error_of([&] { disk.fetch({tensor}); }), HasSubstr("\"tensor\" are lost"));
  disk.store(tensor, numbers(3, 7));
  EXPECT_TRUE(torch::equal(disk.fetch({tensor})[0], numbers(3, 7)));
}

TEST(SwappedTensorsTest, RefusesWhatMakesNoSense) {
  DiskRuntime runtime;
  const auto error = [&](SwapOptions options) {
    return error_of([&] { SwappedTensors(runtime, options); });
  };
  EXPECT_THAT(error({}), HasSubstr("folder"));
  EXPECT_THAT(error({.folder = runtime.folder.path(), .buffer_count = 0}), HasSubstr("not 0"));
  EXPECT_THAT(error({.folder = runtime.folder.path(), .buffer_bytes = -1}), HasSubstr("-1"));
  ASSERT_TRUE(write_file(runtime.disk, runtime.folder.path("file"), "").ok());
  EXPECT_THAT(error({.folder = runtime.folder.path("file/below")}),
              AllOf(HasSubstr("rank 3"), HasSubstr("file/below")));
  SwappedTensors disk(runtime, {.folder = runtime.folder.path(), .buffer_bytes = 8192});
  const Tensor tensor = disk.move("tensor", numbers(3000, 0));
  EXPECT_THAT(error_of([&] { disk.begin_round({{tensor}}); }),
              AllOf(HasSubstr("12288"), HasSubstr("8192")));
}

TEST(SwappedTensorsTest, AReadThatFailsLeavesTheValues) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor tensor = disk.move("tensor", numbers(3, 5));
  runtime.failing.fails_at = 0;
  for (const auto& use :
       std::vector<std::function<void()>>{[&] { tensor.sum(); }, [&] { disk.copy_of(tensor); },
                                          [&] {
                                            disk.begin_round({{tensor}});
                                            disk.swap_in(0);
                                          }}) {
    EXPECT_THAT(error_of(use), AllOf(HasSubstr("rank 3"), HasSubstr("cannot read the file")));
  }
  runtime.failing.fails_at = FailingFiles::kNever;
  EXPECT_TRUE(torch::equal(tensor, numbers(3, 5)));
}

// A buffer whose read failed has the bytes of before, which nothing may take for the tensor's.
TEST(SwappedTensorsTest, APartWhoseReadFailedIsReadAgain) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path(), .buffer_count = 1});
  const Tensor tensor = disk.move("tensor", numbers(3, 5));
  const SwappedTensors::Part part = {tensor};
  // Both ways to what a buffer holds.
  const std::vector<std::function<Tensor()>> ways = {[&] {
                                                       disk.begin_round({part});
                                                       disk.swap_in(0);
                                                       const Tensor values = tensor.clone();
                                                       disk.swap_out(0);
                                                       disk.finish();
                                                       return values;
                                                     },
                                                     [&] { return disk.fetch(part)[0].clone(); }};
  double first = 5;
  for (const auto& way : ways) {
    EXPECT_TRUE(torch::equal(way(), numbers(3, first)));
    tensor.add_(1);
    ++first;
    disk.finish();  // the file has it
    runtime.failing.fails_at = runtime.failing.operations;
    runtime.failing.fails_until = runtime.failing.operations + 1;
    EXPECT_THAT(error_of(way), HasSubstr("cannot read the file"));
    EXPECT_TRUE(torch::equal(way(), numbers(3, first)));
  }
}

TEST(SwappedTensorsTest, AWriteThatFailsIsToldUntilTheTensorIsOverwritten) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor tensor = disk.move("tensor", numbers(3, 5));
  disk.begin_round({{tensor}});
  disk.swap_in(0);
  runtime.failing.fails_at = runtime.failing.operations;
  runtime.failing.fails_until = runtime.failing.operations + 1;
  disk.swap_out(0);
  EXPECT_THAT(error_of([&] { disk.finish(); }), HasSubstr("cannot write the file"));
  const auto lost = AllOf(HasSubstr("rank 3"), HasSubstr("\"tensor\" are lost"),
                          HasSubstr("cannot write the file"));
  EXPECT_THAT(error_of([&] { tensor.sum(); }), lost);
  EXPECT_THAT(error_of([&] { tensor.add_(1); }), lost);
  EXPECT_THAT(error_of([&] {
                disk.begin_round({{tensor}});
                disk.swap_in(0);
              }),
              lost);
  tensor.copy_(numbers(3, 1));
  EXPECT_TRUE(torch::equal(tensor, numbers(3, 1)));
  disk.begin_round({{tensor}});
  disk.swap_in(0);
  EXPECT_TRUE(torch::equal(tensor, numbers(3, 1)));
  disk.swap_out(0);
}

// What cannot be written stays in memory.
TEST(SwappedTensorsTest, ATensorThatCannotMoveStays) {
  DiskRuntime runtime;
  SwappedTensors disk(runtime, {.folder = runtime.folder.path()});
  const Tensor tensor = numbers(3, 5);
  runtime.failing.fails_at = 0;
  EXPECT_THAT(error_of([&] { disk.move_in_place("tensor", tensor); }), HasSubstr("cannot write"));
  EXPECT_TRUE(torch::equal(tensor, numbers(3, 5)));
  EXPECT_EQ(disk.traffic().file_bytes, 0);
}

}  // namespace
}  // namespace accelerate
