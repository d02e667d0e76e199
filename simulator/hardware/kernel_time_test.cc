// Kernels' durations against the figures that the tables are made of, and against each other.
#include "simulator/hardware/kernel_time.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "simulator/hardware/explain_op.h"
#include "simulator/hardware/kernel_table_text.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Stage = KernelTable::Attention::Stage;

DeviceModel device_of(const KernelTable& table) { return *find_device(table.device); }

std::vector<KernelTable> tables() {
  std::vector<KernelTable> all;
  for (const std::string& name : devices_with_kernel_table()) {
    all.push_back(*find_kernel_table(name));
  }
  return all;
}

double product_ns(const KernelTable& table, const KernelTable::Product& product) {
  return static_cast<double>(
      kernel_time(device_of(table), &table,
                  product_work(product.type, 1, product.m, product.n, product.k))
          .ns);
}

double attention_ns(const KernelTable& table, const KernelTable::Attention& line) {
  double ns = 0;
  for (const bool backward : {false, true}) {
    if (line.stage == (backward ? Stage::kForward : Stage::kBackward)) continue;
    ns += static_cast<double>(kernel_time(device_of(table), &table,
                                          attention_work({.type = line.type,
                                                          .causal = line.causal,
                                                          .backward = backward,
                                                          .heads = line.batch * line.heads,
                                                          .queries = line.length,
                                                          .keys = line.length,
                                                          .head_dim = line.head_dim}))
                                  .ns);
  }
  return ns;
}

TEST(KernelTables, GiveTheirOwnFiguresBack) {
  for (const KernelTable& table : tables()) {
    if (!table.of_another.empty()) continue;
    ASSERT_GE(table.products.size(), 100u) << table.device;
    for (const KernelTable::Product& each : table.products) {
      // Two sources may have measured one shape.
      const auto twin = std::ranges::count_if(table.products, [&](const auto& other) {
        return other.m == each.m && other.n == each.n && other.k == each.k;
      });
      if (twin == 1) {
        EXPECT_NEAR(product_ns(table, each) / each.ns, 1, 0.02)
            << table.device << " " << each.m << "x" << each.n << "x" << each.k;
      }
    }
    for (const KernelTable::Attention& line : table.attention) {
      EXPECT_NEAR(attention_ns(table, line) / line.ns, 1, 0.02)
          << table.device << " " << line.head_dim << " " << line.length << " " << line.causal;
    }
  }
}

TEST(HostTime, DependsOnTheOperatorUnderMeasured) {
  DeviceModel h100 = *find_device("h100");
  EXPECT_EQ(host_ns(h100, nullptr, {}), 5000);
  EXPECT_EQ(host_ns(h100, nullptr, {.records = true, .is_product = true, .tensors = 9}), 5000);
  EXPECT_EQ(host_ns(h100, nullptr, {.launches = false}), 0);
  EXPECT_EQ(collective_host_ns(h100, nullptr), 5000);
  const KernelTable& table = *find_kernel_table("h100");
  const auto ns = [&](const OperatorCall& work) { return host_ns(h100, &table, work); };
  EXPECT_EQ(ns({}), 3500);
  EXPECT_EQ(ns({.launches = false}), 700);
  EXPECT_EQ(ns({.records = true}), 5300);
  EXPECT_EQ(ns({.is_in_node = true, .is_product = true}), 7000);
  EXPECT_EQ(ns({.tensors = 100}), 6500);
  EXPECT_EQ(collective_host_ns(h100, &table), 15000);
  h100.launch_ns *= 2;  // a slower host
  EXPECT_EQ(ns({}), 7000);
}

TEST(HostCopies, AreSlowerFromPageableMemory) {
  const DeviceModel h100 = *find_device("h100");
  const KernelTable& table = *find_kernel_table("h100");
  constexpr double kBytes = 64e6;
  EXPECT_EQ(host_copy_ns(h100, nullptr, kBytes, true), 1'000'000);
  EXPECT_EQ(host_copy_ns(h100, nullptr, kBytes, false), 1'000'000);
  EXPECT_NEAR(host_copy_ns(h100, &table, kBytes, true), 1'000'000 / 0.797, 1);
  EXPECT_NEAR(host_copy_ns(h100, &table, kBytes, false), 1'000'000 / 0.156, 1);
  EXPECT_EQ(host_copy_ns(h100, nullptr, 4, true), h100.kernel_ns_min);
}

// A fold is every tenth line of the file.
TEST(KernelTables, PredictAHeldBackTenthOfTheirProducts) {
  for (const KernelTable& table : tables()) {
    double error = 0;
    for (size_t fold = 0; fold < 10; ++fold) {
      KernelTable others = table;
      others.products.clear();
      std::vector<KernelTable::Product> held;
      for (size_t i = 0; i < table.products.size(); ++i) {
        (i % 10 == fold ? held : others.products).push_back(table.products[i]);
      }
      for (const auto& each : held) error += std::abs(product_ns(others, each) / each.ns - 1);
    }
    error /= static_cast<double>(table.products.size());
    RecordProperty(absl::StrCat(table.device, "_products"), absl::StrCat(error));
    EXPECT_LE(error, 0.08) << table.device;
  }
}

TEST(KernelTables, PredictAttentionThatIsLeftOut) {
  for (const KernelTable& table : tables()) {
    if (table.attention.size() < 10) continue;
    double error = 0;
    for (size_t fold = 0; fold < 10; ++fold) {
      KernelTable others = table;
      others.attention.clear();
      std::vector<KernelTable::Attention> held;
      for (size_t i = 0; i < table.attention.size(); ++i) {
        (i % 10 == fold ? held : others.attention).push_back(table.attention[i]);
      }
      derive(others);
      for (const auto& line : held) error += std::abs(attention_ns(others, line) / line.ns - 1);
    }
    error /= static_cast<double>(table.attention.size());
    RecordProperty(absl::StrCat(table.device, "_attention"), absl::StrCat(error));
    EXPECT_LE(error, 0.08) << table.device;
  }
}

TEST(KernelTables, HaveTheBandwidthOfTheirSources) {
  // BabelStream on H100 by Azure's guide: copy 2,900 GB/s, add 2,970, dot (reads only) 3,180.
  const KernelTable& table = *find_kernel_table("h100");
  for (const auto& [operation, gigabytes] :
       {std::pair{"copy", 2900}, std::pair{"add", 2970}, std::pair{"read", 3180}}) {
    const auto work = parse_operation(absl::StrCat(operation, " 4GiB"));
    const double ns = static_cast<double>(kernel_time(device_of(table), &table, *work).ns);
    EXPECT_NEAR(work->bytes / ns / gigabytes, 1, 0.02) << operation;
  }
}

TEST(KernelTime, IsTheRooflineWhereItIsIdeal) {
  DeviceModel h100 = *find_device("h100");
  EXPECT_EQ(kernel_table_of(h100), find_kernel_table("h100"));
  h100.efficiency = Efficiency::kIdeal;
  EXPECT_EQ(kernel_table_of(h100), nullptr);
  for (const char* operation :
       {"mm 4096x4096x4096:bf16", "mm 128x8192x8192:fp32", "bmm 8x64x64x64:fp64",
        "attention 2x32x4096x128:bf16 causal", "copy 1GiB", "add 8B"}) {
    const auto work = parse_operation(operation);
    const double seconds =
        std::max(work->flops / h100.flops(work->type), work->bytes / h100.memory_bytes_per_second);
    EXPECT_EQ(kernel_time(h100, nullptr, *work).ns,
              std::max<int64_t>(std::llround(seconds * 1e9), h100.kernel_ns_min))
        << operation;
  }
}

int64_t measured_ns(const DeviceModel& device, absl::string_view operation) {
  const auto work = parse_operation(operation);
  EXPECT_TRUE(work.ok()) << work.status();
  return kernel_time(device, find_kernel_table(device.name), *work).ns;
}

TEST(KernelTime, IsNeverBelowTheRoofline) {
  for (const std::string& name : devices_with_kernel_table()) {
    const DeviceModel device = *find_device(name);
    for (int64_t m = 1; m <= 65536; m = m * 5 / 2 + 1) {
      for (int64_t n = 1; n <= 65536; n = n * 3 + 1) {
        for (const int64_t k : {1, 64, 1000, 4096, 30000}) {
          for (const MathType type : {MathType::kFp32, MathType::kBf16, MathType::kFp8}) {
            const KernelWork work = product_work(type, 1, m, n, k);
            EXPECT_GE(kernel_time(device, find_kernel_table(name), work).ns,
                      kernel_time(device, nullptr, work).ns)
                << name << " " << m << "x" << n << "x" << k;
          }
        }
      }
    }
  }
}

// Not so for the extents of products: see kernel_time.h.
TEST(KernelTime, GrowsWithTheWork) {
  for (const std::string& name : devices_with_kernel_table()) {
    const DeviceModel device = *find_device(name);
    for (const char* operation : {"read", "copy", "add"}) {
      int64_t last = 0;
      for (double bytes = 1; bytes < 1e11; bytes *= 1.7) {
        const int64_t ns =
            measured_ns(device, absl::StrCat(operation, " ", static_cast<int64_t>(bytes)));
        EXPECT_GE(ns, last) << name << " " << operation << " " << bytes;
        last = ns;
      }
    }
    for (const char* flags : {"", " causal", " backward", " causal backward"}) {
      int64_t last = 0;
      for (int64_t length = 16; length < 200000; length = length * 3 / 2) {
        const int64_t ns =
            measured_ns(device, absl::StrCat("attention 1x16x", length, "x128:bf16", flags));
        EXPECT_GE(ns, last) << name << flags << " " << length;
        last = ns;
      }
    }
    // A batch of one is a plain product, which measured products correct.
    for (int64_t batch = 2; batch < 5000; batch = batch * 2 + 1) {
      EXPECT_LE(measured_ns(device, absl::StrCat("bmm ", batch, "x256x256x64:bf16")),
                measured_ns(device, absl::StrCat("bmm ", 2 * batch, "x256x256x64:bf16")));
    }
  }
}

TEST(KernelTime, ScalesWithTheDevice) {
  DeviceModel fast = *find_device("h100");
  for (double& flops : fast.flops_per_second) flops *= 2;
  fast.memory_bytes_per_second *= 2;
  for (const char* operation : {"mm 4096x4096x4096:bf16", "mm 64x8192x8192:bf16", "copy 1GiB",
                                "attention 2x32x4096x128:bf16"}) {
    const double ratio = static_cast<double>(measured_ns(*find_device("h100"), operation)) /
                         static_cast<double>(measured_ns(fast, operation));
    EXPECT_GT(ratio, 1.7) << operation;
    EXPECT_LE(ratio, 2.001) << operation;
  }
}

TEST(KernelTime, CountsWavesOfTiles) {
  const KernelTable& table = *find_kernel_table("a100-80");
  const DeviceModel a100 = *find_device("a100-80");
  // 108 tiles of 256 by 128 fill the device once; with one more row a second wave begins.
  const auto full = kernel_time(a100, &table, product_work(MathType::kBf16, 1, 2304, 1536, 4096));
  EXPECT_EQ(full.tiles, 108);
  EXPECT_EQ(full.waves, 1);
  EXPECT_EQ(full.split, 1);
  const auto more = kernel_time(a100, &table, product_work(MathType::kBf16, 1, 2305, 1536, 4096));
  EXPECT_GT(more.compute_ns, full.compute_ns * 1.1);
  // Few tiles: k is split so that all multiprocessors work.
  const auto thin = kernel_time(a100, &table, product_work(MathType::kBf16, 1, 256, 256, 65536));
  EXPECT_GT(thin.split, 1);
}

// A SwiGLU block of width 10922 on H100 runs at 68 % of the speed of one of width 10944.
TEST(KernelTime, IsLongerWhereMatricesAreNotAligned) {
  const DeviceModel h100 = *find_device("h100");
  EXPECT_GT(measured_ns(h100, "mm 4096x10922x4096:bf16"),
            measured_ns(h100, "mm 4096x10944x4096:bf16") * 1.3);
  EXPECT_GT(measured_ns(h100, "mm 4096x4096x10922:bf16"),
            measured_ns(h100, "mm 4096x4096x10944:bf16") * 1.3);
  // The rows are as long as before, there are fewer.
  EXPECT_LT(measured_ns(h100, "mm 10922x4096x4096:bf16"),
            measured_ns(h100, "mm 10944x4096x4096:bf16") * 1.01);
  // These are not computed by matrix units.
  EXPECT_LE(measured_ns(h100, "mm 4096x10922x4096:fp32"),
            measured_ns(h100, "mm 4096x10944x4096:fp32"));
}

TEST(KernelTime, IsThatOfTheMeasuredProduct) {
  const KernelTable& table = *find_kernel_table("h100");
  const KernelTime time =
      kernel_time(device_of(table), &table, product_work(MathType::kBf16, 1, 4096, 57344, 8192));
  EXPECT_TRUE(time.is_measured);
  EXPECT_EQ(time.num_neighbours, 1);
  EXPECT_EQ(table.sources[time.neighbours[0]->source].key, "vidur");
  EXPECT_EQ(time.ns, 5709000);
}

TEST(KernelTime, IsCorrectedLessTheFartherMeasurementsAre) {
  // One product in eight bits was measured on B200.
  const KernelTable& table = *find_kernel_table("b200");
  const auto ratio = [&table](int64_t m) {
    const KernelTime time =
        kernel_time(device_of(table), &table, product_work(MathType::kFp8, 1, m, 4096, 3072));
    EXPECT_EQ(time.num_neighbours, 1);
    EXPECT_EQ(time.is_measured, m == 15360);
    return std::abs(std::log(time.correction));
  };
  EXPECT_GT(ratio(15360), 0);
  EXPECT_GT(ratio(15360), ratio(16384));
  EXPECT_GT(ratio(16384), ratio(65536));
  EXPECT_GT(ratio(65536), ratio(1 << 20));
}

TEST(KernelTime, OfAttentionIsBetweenThoseOfMeasuredHeads) {
  const DeviceModel h100 = *find_device("h100");
  const KernelTable& table = *find_kernel_table("h100");
  const auto share = [&](int64_t heads, int64_t head_dim) {
    return kernel_time(h100, &table,
                       attention_work(
                           {.heads = heads, .queries = 4096, .keys = 4096, .head_dim = head_dim}))
        .compute_share;
  };
  EXPECT_LT(share(64, 64), share(64, 96));
  EXPECT_LT(share(64, 96), share(64, 128));
  EXPECT_EQ(share(64, 128), share(64, 256));
  // Two heads of 32 blocks leave most of 132 multiprocessors idle.
  EXPECT_NEAR(share(2, 128) / share(64, 128), 64.0 / 132, 1e-9);
}

// The same chip: what waits for arithmetic takes as long, what waits for memory longer.
TEST(KernelTables, HoldForTheSameChipWithOtherMemory) {
  const KernelTable& table = *find_kernel_table("a100-40");
  EXPECT_EQ(table.of_another, "a100-80");
  const auto ratio = [](const char* operation) {
    return static_cast<double>(measured_ns(*find_device("a100-40"), operation)) /
           static_cast<double>(measured_ns(*find_device("a100-80"), operation));
  };
  EXPECT_NEAR(ratio("mm 8192x8192x8192:fp16"), 1, 1e-3);
  EXPECT_NEAR(ratio("attention 2x32x4096x128:bf16"), 1, 1e-3);
  EXPECT_NEAR(ratio("copy 1GiB"), 2039.0 / 1555, 1e-2);
}

// PyTorch 2.11.0 for CUDA 13.0 on one H100, 2026-11-26: torch._grouped_mm and torch.bmm.
TEST(KernelTime, OfGroupedProductsIsNearThatOfBatchedOnes) {
  struct Row {
    const char* shape;
    double batched_us, grouped_us;
  };
  for (const Row& row : {
           Row{"8x1024x4096x4096:bf16", 354.8, 367.0},
           Row{"8x4096x14336x4096:bf16", 4851.8, 5208.9},
           Row{"8x4096x4096x14336:bf16", 5247.6, 5107.2},
           Row{"64x256x2048x2048:bf16", 249.2, 271.9},
           Row{"64x512x1408x2048:bf16", 269.3, 315.5},
           Row{"128x128x1536x2048:bf16", 326.1, 344.4},
           Row{"8x128x14336x4096:bf16", 348.9, 365.6},
       }) {
    for (const bool grouped : {false, true}) {
      const double us = grouped ? row.grouped_us : row.batched_us;
      const double ratio =
          static_cast<double>(measured_ns(
              *find_device("h100"), absl::StrCat(grouped ? "grouped_mm " : "bmm ", row.shape))) /
          (1000 * us);
      EXPECT_NEAR(ratio, 1, 0.25) << row.shape << " " << grouped;
    }
  }
}

// LibTorch's memory-efficient kernel on one H100: PyTorch 2.11.0 for CUDA 13.0, 2026-11-26.
TEST(KernelTime, OfTheMemoryEfficientKernelIsThatOfAnH100) {
  struct Row {
    const char* shape;
    double forward_us, backward_us;
  };
  for (const Row& row : {
           Row{"16x16x512x64:fp32", 560.6, 1400},
           Row{"16x16x512x64:fp32 causal", 356.1, 913.5},
           Row{"4x16x2048x64:fp32", 2072, 5195},
           Row{"2x16x4096x64:fp32 causal", 2299, 5564},
           Row{"8x16x1024x128:fp32", 1522, 4929},
           Row{"2x16x4096x128:fp32", 5917, 19017},
           Row{"1x16x8192x128:fp32 causal", 6159, 18905},
           Row{"4x16x2048x64:fp32 dropout", 2651, 5820},
           Row{"2x16x4096x128:fp32 causal dropout", 3906, 10909},
           Row{"4x16x2048x64:bf16 mask", 772.8, 2060},
           Row{"2x16x4096x128:bf16 mask", 2091, 5609},
           Row{"4x16x2048x64:bf16 dropout", 322.1, 848.6},
           Row{"2x16x4096x128:bf16 causal dropout", 636.3, 1652},
       }) {
    for (const bool backward : {false, true}) {
      const double ns = static_cast<double>(
          measured_ns(*find_device("h100"),
                      absl::StrCat("attention ", row.shape, backward ? " backward" : "")));
      const double us = backward ? row.backward_us : row.forward_us;
      // Causal rows of short sequences do more than half; in 16 bits the rate is that of the charts
      // of FlashAttention-2, of which this card reached less.
      EXPECT_GE(ns / 1000 / us, 0.65) << row.shape << " " << backward;
      EXPECT_LE(ns / 1000 / us, 1.30) << row.shape << " " << backward;
      RecordProperty(absl::StrCat(row.shape, backward ? " backward" : ""),
                     absl::StrCat(ns / 1000 / us));
    }
  }
}

// Times beside those of the same shape without it, which the absolute ones above cannot tell: how
// much slower dropout and masks made attention on that H100, forward and backward.
TEST(KernelTime, OfAttentionWithDropoutAndMasksIsMeasuredBesideThatWithout) {
  for (const char* device : {"h100", "a100-80"}) {
    const auto ns = [&](absl::string_view shape, absl::string_view flags, bool backward) {
      return static_cast<double>(
          measured_ns(*find_device(device),
                      absl::StrCat("attention ", shape, flags, backward ? " backward" : "")));
    };
    for (const char* shape : {"4x16x4096x128:bf16", "8x16x8192x64:bf16", "4x16x4096x128:fp32"}) {
      const double plain = ns(shape, "", false), plain_backward = ns(shape, "", true);
      EXPECT_NEAR(plain / ns(shape, " dropout", false), 0.79, 0.01) << device << shape;
      EXPECT_NEAR(plain_backward / ns(shape, " dropout", true), 0.895, 0.01) << device << shape;
      EXPECT_NEAR(ns(shape, " causal", false) / ns(shape, " causal dropout", false), 0.79, 0.01);
      // A mask in 16 bits is the other kernel's as well, of half the speed.
      const bool is_half = absl::StrContains(shape, "bf16");
      EXPECT_NEAR(plain / ns(shape, " mask", false), 0.73 * (is_half ? 0.50 : 1), 0.01)
          << device << shape;
      EXPECT_NEAR(plain_backward / ns(shape, " mask", true), 0.895 * (is_half ? 0.48 : 1), 0.01)
          << device << shape;
    }
  }
}

// As above: grouped products beside batched ones, and norms and lists beside other kernels that
// move as many bytes.
TEST(KernelTime, OfGroupsNormsAndListsIsMeasuredBesideOthers) {
  for (const char* name : {"h100", "a100-80"}) {
    const DeviceModel device = *find_device(name);
    const auto product_ns = [&](absl::string_view kind) {
      return static_cast<double>(
          measured_ns(device, absl::StrCat(kind, " 8x4096x14336x4096:bf16")));
    };
    EXPECT_NEAR(product_ns("bmm") / product_ns("grouped_mm"), 0.94, 0.005) << name;
    const auto memory_ns = [&](KernelWork::Kind kind) {
      const KernelWork work = {.bytes = 4e9, .written_bytes = 2e9, .kind = kind};
      return static_cast<double>(kernel_time(device, find_kernel_table(name), work).ns);
    };
    const double plain_ns = memory_ns(KernelWork{}.kind);
    EXPECT_NEAR(plain_ns / memory_ns(KernelWork::Kind::kNorm), 0.69, 0.005) << name;
    EXPECT_NEAR(plain_ns / memory_ns(KernelWork::Kind::kList), 0.92, 0.005) << name;
  }
}

TEST(KernelTable, RefusesWhatItCannotUse) {
  struct Case {
    const char* old_text;
    const char* new_text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"kernel-table/1", "kernel-table/9", "\"kernel-table/1\" at \"/schema\""},
           Case{"\"multiprocessors\": 132", "\"multiprocessors\": 0",
                "a number above zero and at most 1e+06 at \"/multiprocessors\""},
           Case{"\"memory_gb_s\"", "\"memory\"", "a value at \"/peak/memory_gb_s\""},
           Case{"\"share\": 0.8029", "\"share\": 1.8",
                "at most 1 at \"/matmul/plateau/fp64/share\""},
           Case{"\"source\": \"vidur\"", "\"source\": \"vidor\"",
                "a key of /sources (did you mean \"vidur\"?) at \"/matmul/measured/3/source\""},
           Case{"\"type\": \"fp8\"", "\"type\": \"fp9\"", "at \"/matmul/measured/0/type\""},
           Case{"[1024, 1024, 1024, 7.835]", "[1024, 1024, 7.835]",
                "4 numbers at \"/matmul/measured/0/values/1\""},
           Case{"[1024, 1024, 1024, 7.835]", "[1024, 1024, -1, 7.835]",
                "at \"/matmul/measured/0/values/1/2\""},
           Case{"[\"m\", \"n\", \"k\", \"us\"]", "[\"m\", \"k\", \"n\", \"us\"]",
                "m, n, k, us at \"/matmul/measured/0/columns\""},
           Case{"\"stage\": \"both\"", "\"stage\": \"forward\"",
                "a line of stage backward or both"},
           Case{"\"stage\": \"both\"", "\"stage\": \"back\"", "at \"/attention/measured/0/stage\""},
           Case{"{", "[", "it is not JSON: parse error at line 2"},
       }) {
    const std::string text = absl::StrReplaceAll(kKernelsH100, {{c.old_text, c.new_text}});
    const auto table = parse_kernel_table(text);
    ASSERT_FALSE(table.ok()) << c.new_text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(c.expected)) << c.new_text;
  }
  EXPECT_EQ(find_kernel_table("mi300x"), nullptr);
}

TEST(ParseOperation, SaysWhatItAccepts) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"", "one of mm, bmm, grouped_mm, attention, read, copy, add"},
           Case{"nm 1x1x1:bf16", "did you mean \"mm\""},
           Case{"mm", "mxnxk:TYPE, as in \"mm 12288x4096x4096:bf16\""},
           Case{"mm 4x4:bf16", "mxnxk:TYPE"},
           Case{"mm 4x4x4", "mxnxk:TYPE"},
           Case{"mm 4x0x4:bf16", "a whole number from 1 to 2147483648 for n, not \"0\""},
           Case{"mm 4x4x4:bf17", "a type (did you mean \"bf16\""},
           Case{"mm 4x4x4:bf16 causal", "nothing in the place of \"causal\""},
           Case{"attention 1x1x1x64:bf16 casual",
                "\"causal\", \"backward\", \"mask\" or \"dropout\" in the place of \"casual\""},
           Case{"bmm 2147483648x2147483648x2147483648x4:bf16",
                "a smaller shape, of at most 1000 PFLOP instead of 7.923e+13 PFLOP"},
           Case{"attention 1x1x2147483648x64:bf16", "a smaller shape, of at most 1000 PFLOP"},
           Case{"copy", "as in \"copy 64MiB\""},
           Case{"copy 64QB", "as in \"copy 64MiB\""},
       }) {
    const auto work = parse_operation(c.text);
    ASSERT_FALSE(work.ok()) << c.text;
    EXPECT_THAT(
        std::string(work.status().message()),
        AllOf(HasSubstr(absl::StrCat("bad operation \"", c.text, "\"")), HasSubstr(c.expected)));
  }
}

}  // namespace
}  // namespace accelerate::simulator
