// The answers of Megatron-Core 0.16.1 and NumPy 2.4.6: hashes of what the functions of
// megatron/core/datasets gave. record_orders.py compares them, and draws other blends.
#include "accelerate/megatron/sample_order.h"

#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// FNV-1a over the numbers' 8 bytes, little endian.
template <typename Numbers>
uint64_t hash_of(const Numbers& numbers) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const int64_t number : numbers) {
    for (int i = 0; i < 8; ++i) {
      hash ^= static_cast<uint64_t>(number) >> (8 * i) & 0xFF;
      hash *= 0x100000001b3U;
    }
  }
  return hash;
}

struct RecordedBlend {
  std::vector<double> weights;
  int64_t size;
  uint64_t datasets;
  uint64_t samples;
};

const std::vector<RecordedBlend>& recorded_blends() {
  static const auto* const blends = new std::vector<RecordedBlend>{
      {{95.0, 0.1, 0.000966730948165597, 0.00010460931071959, 7.344097236025571e-05, 8.0, 0.1,
        0.17220741221299118, 58.0},
       2994,
       0xf15ffe9cbb36dc65U,
       0x8cbe6884990445a8U},
      {{0.030467817660001617, 0.1}, 2442, 0xb60d0f795c2df284U, 0x6e313a218dbca7caU},
      {{33.0, 0.6098483296316703, 0.1, 0.00048617471200620776, 90.0},
       232,
       0xc32630be350da086U,
       0x19075a50de65b824U},
      {{37.0, 0.0009542251605403445, 0.0008526244184331853, 0.8275024421763251, 45.0, 0.1,
        0.0009274602812542275, 99.0, 0.7582281904359209},
       1522,
       0xc46dc947d4e682cfU,
       0x37182a49350d0a2dU},
      {{0.1,
        0.00039744587699858206,
        0.45709449654154344,
        0.000821942740703178,
        0.0007580130485188422,
        5.0,
        0.1,
        0.0009004082311800532,
        0.5505635506703223,
        0.5370848946777068,
        6.0,
        14.0,
        14.0,
        55.0,
        0.1,
        0.1,
        0.00683546179095651,
        75.0,
        26.0,
        2.525720694467748e-05,
        0.0005386471908435549,
        4.0,
        0.6015062207110301,
        0.1,
        0.00039508037957214614,
        0.11064187354418886,
        0.1,
        31.0,
        0.0005220621167039036,
        30.0,
        0.0005071809447593549,
        0.2686670491945362,
        0.000152708601328304,
        0.1,
        71.0,
        0.0008879030641916841,
        0.9948549788564716,
        72.0,
        36.0,
        0.1},
       844,
       0x999fd92ffd34bde7U,
       0x836509d39383a75eU},
      {{0.9632204982353252}, 1984, 0xc5b3ed2cd4e3fb25U, 0x114cbec899231e25U},
      {{0.8050795675679367, 13.0, 15.0, 0.1556733877831593, 47.0},
       1356,
       0xc1439ef1f39ff2e6U,
       0x5f8000cfa9e82c04U},
      {{0.40049314990511764, 0.1}, 80, 0x3a6f683366c8e025U, 0x6f9c4e7d5f142625U},
      {{0.0007355542303222102, 0.7060348618769189, 0.0006312279683980362, 0.1,
        3.314235779598096e-05, 0.1, 0.6817537644849463, 0.3636582498522156, 0.2562882989143501, 0.1,
        15.0, 0.000656808378274605, 0.0004777898384082083, 54.0, 0.0007175164210674641, 0.1,
        0.0007541997596852775},
       2125,
       0x3eb504fa2f5448c5U,
       0x5c8b917c6678c386U},
      {{0.2421101718340486, 0.00021284809416750495, 0.0005719361039219952, 0.0008506848156307787,
        0.1, 0.1, 16.0, 0.1, 0.12812915201833053, 0.1, 0.0009086922687754949, 0.0006182101669516447,
        0.0008277186032494502, 0.0008126931533721854, 0.0006788487258708224, 0.0003175134920621291,
        0.1},
       1507,
       0xc6fbb7d029cb4c18U,
       0x4da59a8c2286d117U},
      {{0.1, 0.1, 0.1, 0.1, 0.0007889038030690225}, 515, 0x33b38d5151fd5e85U, 0xc4b9d2255b8e0ac4U},
      {{0.1, 0.6549738539583633, 0.798657808259303, 51.0, 0.6133622461421928, 0.1,
        0.0007903843864873711, 0.1, 0.1},
       364,
       0xbfe931f0ff02c5acU,
       0xf8587218a4a124d0U},
      {{0.1}, 962, 0xe6d6d3adeda4bc65U, 0xc1fc7272b7469444U},
      {{0.0009084186718238032, 0.1, 0.6663831265507604},
       1954,
       0x37f5bf50e54566a4U,
       0x26839af17baadb59U},
      {{0.20185128885208325, 0.0005332800286413374, 82.0, 0.0004859184671855353, 0.1, 26.0, 0.1,
        0.1, 0.0009341921988322326, 31.0, 92.0, 0.1, 0.0005691068824276653, 0.0003604928972609005,
        88.0, 0.1, 0.13006796324062442},
       1088,
       0x40c94f4e94c1f338U,
       0xd7f4e73c317cecaeU},
      {{0.1, 0.0006782308603205259, 0.7906940815266033},
       452,
       0xeb6008da0d128764U,
       0x27f0190706845b56U},
      {{0.00042940385352805164, 0.14938434993843874, 0.025163182530832495, 0.0006271555193248584,
        0.00045878983447546494, 0.00018570896075907983, 0.1, 0.000305227018081622,
        0.0004517081749006283},
       795,
       0x82f8c90d27cb9be9U,
       0x523f34cb05fe09e9U},
      {{0.0009303104631947187, 0.0003623004419042565, 54.0, 76.0, 0.0005559864040299143, 12.0,
        7.256069343498495e-05, 0.1, 0.0003683459672702365},
       2791,
       0x556d915db9252885U,
       0x5bbf90325cf85408U},
      {{0.5138695668945245, 0.1, 0.9633777276567362},
       2367,
       0x637fef2de6e000a5U,
       0x53c7b1a271bb7e33U},
      {{0.1, 0.8284105080790451}, 2493, 0x32e723aaf0895a25U, 0xf16a126f1d37f6daU},
  };
  return *blends;
}

struct RecordedSizes {
  std::vector<int64_t> sizes;
  uint64_t datasets;
  uint64_t samples;
};

const std::vector<RecordedSizes>& recorded_sizes() {
  static const auto* const sizes = new std::vector<RecordedSizes>{
      {{53, 125, 149, 22, 45}, 0x3254f8466b9589e2U, 0x7646b7f1a1c05fb4U},
      {{57, 81, 72, 112, 144}, 0xf56cfeecda03bec4U, 0x3c0e9db1fb7cbb4dU},
      {{83, 147, 83, 100, 29}, 0x764805599ea6bdc2U, 0x0422cfbd8789eb6aU},
      {{189, 50, 106, 36, 109, 50, 53, 93, 12}, 0xe98e40ce5c05a200U, 0x28ffdde9087404dcU},
  };
  return *sizes;
}

struct RecordedOrder {
  int64_t num_sequences;
  int64_t sequence_length;
  int64_t num_samples;
  uint32_t seed;
  size_t documents;
  size_t samples;
  uint64_t documents_hash;
  uint64_t places_hash;
  uint64_t shuffle_hash;
};

constexpr RecordedOrder kOrders[] = {
    {20, 16, -1, 1234u, 19, 28, 0xadd6a1a750e076e5U, 0x3e1cca031bd8b542U, 0x5d0ec61c99f27645U},
    {20, 16, 200, 1234u, 133, 201, 0xdf546ee12c156665U, 0xe6c0c7d3e5d8db7bU, 0xe3487e443e68da0dU},
    {7, 8, 35, 0u, 12, 53, 0x090e010b2a59b945U, 0x684aaccf187ac59bU, 0x591affc54191ff51U},
    {50, 33, 1000, 4294967295u, 1274, 1024, 0xfc66be7851310325U, 0x05f60aa319dac957U,
     0x304037d50ff41c59U},
    {3, 5, 4, 7u, 2, 10, 0x7717980363c8e066U, 0xcb2b15b10cceb93dU, 0xd2f4d36e868b7d84U},
    {30, 64, 90, 42u, 232, 92, 0x362ea4c3633d08e5U, 0xbbbf13f8214b23efU, 0x076ddc0d0c6357a5U},
};

TEST(SampleOrder, OfTwentyBlendsIsMegatronCores) {
  ASSERT_EQ(recorded_blends().size(), 20U);
  for (const RecordedBlend& blend : recorded_blends()) {
    const BlendOrder order = blend_order(blend.weights, blend.size);
    EXPECT_EQ(hash_of(order.datasets), blend.datasets) << blend.weights.size();
    EXPECT_EQ(hash_of(order.samples), blend.samples) << blend.weights.size();
  }
}

TEST(SampleOrder, OfWholeSetsIsMegatronCores) {
  for (const RecordedSizes& sizes : recorded_sizes()) {
    const BlendOrder order = exhaustive_blend_order(sizes.sizes);
    EXPECT_EQ(hash_of(order.datasets), sizes.datasets) << sizes.sizes.size();
    EXPECT_EQ(hash_of(order.samples), sizes.samples) << sizes.sizes.size();
  }
}

TEST(SampleOrder, OfOneSetIsMegatronCores) {
  for (const RecordedOrder& recorded : kOrders) {
    std::vector<int64_t> lengths;
    std::vector<int64_t> sequences;
    int64_t state = 12345;
    for (int64_t i = 0; i < recorded.num_sequences; ++i) {
      state = (state * 1103515245 + 12345) % (int64_t{1} << 31);
      lengths.push_back(state / 65536 % 50);
      if (i > 0) sequences.push_back(i);
    }
    const SampleOrder order = sample_order(sequences, lengths,
                                           {.sequence_length = recorded.sequence_length,
                                            .num_samples = recorded.num_samples,
                                            .seed = recorded.seed});
    EXPECT_EQ(order.documents.size(), recorded.documents);
    EXPECT_EQ(order.shuffle.size(), recorded.samples);
    EXPECT_EQ(hash_of(order.documents), recorded.documents_hash) << recorded.num_sequences;
    std::vector<int64_t> places;
    for (const SamplePlace& place : order.places) {
      places.push_back(place.document);
      places.push_back(place.offset);
    }
    EXPECT_EQ(hash_of(places), recorded.places_hash) << recorded.num_sequences;
    EXPECT_EQ(hash_of(order.shuffle), recorded.shuffle_hash) << recorded.num_sequences;
  }
}

// A sample begins with the last one's label, so that 9 tokens are two samples of 4.
TEST(SampleOrder, HasAsManyPassesAsTheSamplesNeed) {
  const std::vector<int64_t> sequences = {0}, lengths = {9};
  const auto passes = [&](int64_t samples) {
    const SampleOrder order =
        sample_order(sequences, lengths, {.sequence_length = 4, .num_samples = samples});
    EXPECT_GE(order.num_samples(), samples);
    return order.documents.size();
  };
  EXPECT_EQ(passes(0), 1U);
  EXPECT_EQ(passes(2), 1U);
  EXPECT_EQ(passes(3), 2U);
  EXPECT_EQ(passes(4), 2U);
  EXPECT_EQ(passes(5), 3U);
  EXPECT_EQ(passes(11), 5U);
  EXPECT_EQ(passes(12), 6U);
}

TEST(SampleOrder, OfWholeSetsTakesNothingOfOneWithoutSamples) {
  const BlendOrder order = exhaustive_blend_order(std::vector<int64_t>{0, 2, 0});
  EXPECT_THAT(order.datasets, ElementsAre(1, 1));
  EXPECT_THAT(order.samples, ElementsAre(0, 1));
}

TEST(SampleOrder, DividesSequencesByTheirShares) {
  EXPECT_THAT(split_sequences("949,50,1", 1000),
              ElementsAre(Pair(0, 949), Pair(949, 999), Pair(999, 1000)));
  EXPECT_THAT(split_sequences("1", 7), ElementsAre(Pair(0, 7), Pair(7, 7), Pair(7, 7)));
  EXPECT_THAT(split_sequences("1,1", 5), ElementsAre(Pair(0, 2), Pair(2, 5), Pair(5, 5)))
      << "of two places that are equally near, the even one";
}

TEST(SampleOrder, BuildsAFewSamplesMoreOfEachSet) {
  EXPECT_THAT(blend_sizes(std::vector<double>{3, 1}, 1000), ElementsAre(754, 252));
  EXPECT_THAT(blend_sizes(std::vector<double>{3, 1}, 10, 0), ElementsAre(8, 3));
}

TEST(SampleOrder, NamesWhatIsWrong) {
  EXPECT_THAT(value_error_of([] { blend_order(std::vector<double>{1, -1}, 4); }), HasSubstr("-1"));
  EXPECT_THAT(value_error_of([] { blend_order(std::vector<double>{0, 0}, 4); }),
              HasSubstr("the sum 0"));
  EXPECT_THAT(value_error_of([] { exhaustive_blend_order(std::vector<int64_t>{-3}); }),
              HasSubstr("-3 samples"));
  EXPECT_THAT(value_error_of([] {
                blend_order(std::vector<double>{1, std::numeric_limits<double>::infinity()}, 4);
              }),
              HasSubstr("weights are finite"));
  EXPECT_THAT(value_error_of([] { split_sequences("1,a", 4); }), HasSubstr("\"1,a\""));
  EXPECT_THAT(value_error_of([] { split_sequences("2,-1", 4); }), HasSubstr("\"2,-1\""));
  EXPECT_THAT(value_error_of([] { split_sequences("inf", 4); }), HasSubstr("\"inf\""));
  EXPECT_THAT(value_error_of([] { split_sequences("1,1,1,1", 4); }), HasSubstr("4 numbers"));
  const std::vector<int64_t> sequences = {0};
  const std::vector<int64_t> empty = {0};
  EXPECT_THAT(value_error_of([&] { sample_order(sequences, empty, {.sequence_length = 4}); }),
              HasSubstr("too few"));
  for (const int64_t outside : {-1, 1}) {
    EXPECT_THAT(value_error_of([&] {
                  sample_order(std::vector<int64_t>{outside}, empty, {.sequence_length = 4});
                }),
                HasSubstr("there is no sequence"));
  }
  EXPECT_THAT(value_error_of([&] { sample_order(sequences, empty, {}); }),
              HasSubstr("sequence_length"));
}

}  // namespace
}  // namespace accelerate
