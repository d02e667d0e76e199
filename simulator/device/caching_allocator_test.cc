// Where LibTorch's caching allocator for CUDA would put blocks. A slow model of the documented
// rules is the oracle for long random sequences.
#include "simulator/device/caching_allocator.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using Block = CachingAllocator::Block;
using Options = CachingAllocator::Options;

constexpr int64_t kKibibyte = 1024;
constexpr int64_t kMebibyte = 1024 * kKibibyte;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A host and the streams of a device.
class FakeDriver : public CachingAllocator::Driver {
 public:
  int64_t host_ns() const override { return now; }
  int current_stream() const override { return 0; }
  int64_t stream_ns(int stream) const override { return ends[static_cast<size_t>(stream)]; }
  void host_waits(int64_t until_ns) override { now = std::max(now, until_ns); }
  int64_t busy_until_ns() const override { return *std::max_element(ends.begin(), ends.end()); }

  int64_t now = 0;
  std::vector<int64_t> ends = std::vector<int64_t>(8, 0);
};

class Allocator : public ::testing::Test {
 protected:
  explicit Allocator(const Options& options = {.capacity = 1024 * kMebibyte})
      : allocator_(options, &driver_) {}
  Block* allocate(int64_t bytes, int stream = 0) { return allocator_.allocate(bytes, stream); }
  int64_t reserved() const { return allocator_.figures().reserved; }

  FakeDriver driver_;
  CachingAllocator allocator_;
};

TEST_F(Allocator, CutsSmallBlocksFromSegmentsOfTwoMebibytes) {
  Block* first = allocate(512);
  Block* second = allocate(kMebibyte);
  EXPECT_EQ(second->offset - first->offset, 512);
  EXPECT_EQ(reserved(), 2 * kMebibyte);
  // 1 MiB less 512 bytes are left.
  EXPECT_EQ(allocate(kMebibyte)->offset, 2 * kMebibyte);
  EXPECT_EQ(reserved(), 4 * kMebibyte);
}

TEST_F(Allocator, CutsMediumBlocksFromSegmentsOfTwentyMebibytes) {
  Block* first = allocate(kMebibyte + 512);
  Block* second = allocate(9 * kMebibyte);
  EXPECT_EQ(second->offset - first->offset, kMebibyte + 512);
  EXPECT_EQ(reserved(), 20 * kMebibyte);
}

TEST_F(Allocator, GivesLargeBlocksSegmentsOfTheirOwn) {
  allocate(10 * kMebibyte);
  EXPECT_EQ(reserved(), 10 * kMebibyte);
  allocate(10 * kMebibyte + 512);
  EXPECT_EQ(reserved(), 22 * kMebibyte);
}

TEST_F(Allocator, SplitsALargeBlockOnlyIfMoreThanAMebibyteIsLeft) {
  Block* whole = allocate(10 * kMebibyte);
  allocator_.release(whole);
  // 1 MiB would be left: the block stays whole, and the next one needs memory of its own.
  whole = allocate(9 * kMebibyte);
  EXPECT_EQ(whole->offset, 0);
  EXPECT_EQ(allocator_.figures().allocated, 10 * kMebibyte) << "the whole block counts";
  allocator_.release(whole);
  EXPECT_EQ(allocate(9 * kMebibyte - 512)->offset, 0);
  EXPECT_EQ(allocate(kMebibyte + 512)->offset, 9 * kMebibyte - 512);
  EXPECT_EQ(reserved(), 10 * kMebibyte);
}

TEST_F(Allocator, TakesTheSmallestBlockThatFits) {
  std::vector<Block*> blocks;
  for (const int64_t kibibytes : {64, 4, 16, 4, 32, 4}) {
    blocks.push_back(allocate(kibibytes * kKibibyte));
  }
  std::vector<int64_t> offsets;
  for (const Block* block : blocks) offsets.push_back(block->offset);
  for (const size_t index : {0, 2, 4}) allocator_.release(blocks[index]);
  EXPECT_EQ(allocate(20 * kKibibyte)->offset, offsets[4]);
  EXPECT_EQ(allocate(16 * kKibibyte)->offset, offsets[2]);
  EXPECT_EQ(allocate(16 * kKibibyte)->offset, offsets[0]);
  EXPECT_EQ(allocate(16 * kKibibyte)->offset, offsets[0] + 16 * kKibibyte);
}

TEST_F(Allocator, JoinsFreeNeighbours) {
  Block* first = allocate(512 * kKibibyte);
  Block* second = allocate(512 * kKibibyte);
  Block* third = allocate(512 * kKibibyte);
  Block* fourth = allocate(512 * kKibibyte);
  const int64_t third_offset = third->offset;
  allocator_.release(first);
  allocator_.release(third);
  EXPECT_EQ(allocator_.inactive_split(), kMebibyte);
  // Two halves with a block between them do not make a whole.
  EXPECT_EQ(allocate(kMebibyte)->offset, 2 * kMebibyte);
  allocate(kMebibyte);  // the rest of that segment
  allocator_.release(second);
  EXPECT_EQ(allocate(kMebibyte)->offset, 0);
  allocator_.release(fourth);
  EXPECT_EQ(allocate(kMebibyte)->offset, third_offset);
  EXPECT_EQ(reserved(), 4 * kMebibyte);
  EXPECT_EQ(allocator_.inactive_split(), 0);
}

TEST_F(Allocator, DoesNotJoinSegments) {
  allocator_.release(allocate(10 * kMebibyte));
  Block* second = allocate(12 * kMebibyte);
  EXPECT_EQ(second->offset, 10 * kMebibyte);
  allocator_.release(second);
  EXPECT_EQ(allocate(22 * kMebibyte)->offset, 22 * kMebibyte);
}

TEST_F(Allocator, KeepsTheBlocksOfStreamsApart) {
  for (const int64_t bytes : {int64_t{512}, 2 * kMebibyte, 30 * kMebibyte}) {
    Block* mine = allocate(bytes, 1);
    const int64_t offset = mine->offset;
    allocator_.release(mine);
    const int64_t before = reserved();
    Block* other = allocate(bytes, 2);
    EXPECT_NE(other->offset, offset);
    EXPECT_GT(reserved(), before) << "another stream's free block is not taken";
    EXPECT_EQ(allocate(bytes, 1)->offset, offset);
  }
}

TEST_F(Allocator, ABlockThatOtherStreamsUsedComesBackOnceTheyHavePassed) {
  Block* block = allocate(30 * kMebibyte);
  const int64_t offset = block->offset;
  allocator_.record(block, 0);  // its own: no effect
  allocator_.record(block, 1);
  allocator_.record(block, 2);
  driver_.now = 10;
  driver_.ends[1] = 50;
  driver_.ends[2] = 40;
  allocator_.release(block);
  driver_.ends[1] = 90;  // what is given to a stream later does not count
  EXPECT_EQ(allocator_.figures().allocated, 0);
  EXPECT_EQ(allocator_.figures().active, 30 * kMebibyte);
  driver_.now = 49;
  Block* other = allocate(30 * kMebibyte);
  EXPECT_NE(other->offset, offset);
  driver_.now = 50;
  EXPECT_EQ(allocate(30 * kMebibyte)->offset, offset);
  EXPECT_EQ(allocator_.figures().active, 60 * kMebibyte);
}

class SmallDevice : public Allocator {
 protected:
  SmallDevice() : Allocator({.capacity = 32 * kMebibyte, .malloc_ns = 3, .free_ns = 5}) {}
};

TEST_F(SmallDevice, ARetryThatFreesSegmentsSucceedsAndTakesTime) {
  Block* first = allocate(10 * kMebibyte);
  Block* second = allocate(10 * kMebibyte);
  EXPECT_EQ(driver_.now, 6);
  allocator_.release(first);
  EXPECT_EQ(reserved(), 20 * kMebibyte);
  driver_.ends[3] = 100;
  // The first segment goes back, after a wait for the device.
  Block* third = allocate(14 * kMebibyte);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(reserved(), 24 * kMebibyte);
  EXPECT_EQ(allocator_.figures().retries, 1);
  EXPECT_EQ(driver_.now, 100 + 5 + 3);
  EXPECT_EQ(third->offset, 20 * kMebibyte) << "the gap in front is too small";
  // Full: another retry finds nothing.
  EXPECT_EQ(allocate(10 * kMebibyte), nullptr);
  EXPECT_EQ(allocator_.figures().retries, 2);
  allocator_.release(second);
  allocator_.release(third);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
}

TEST_F(SmallDevice, ARetryWaitsForBlocksThatOtherStreamsUse) {
  Block* first = allocate(20 * kMebibyte);
  allocator_.record(first, 1);
  driver_.ends[1] = 1000;
  allocator_.release(first);
  EXPECT_NE(allocate(24 * kMebibyte), nullptr);
  EXPECT_GE(driver_.now, 1000);
}

TEST_F(SmallDevice, OfItsCapacityMayChange) {
  EXPECT_NE(allocate(20 * kMebibyte), nullptr);
  allocator_.set_capacity(22 * kMebibyte);
  EXPECT_EQ(allocate(4 * kMebibyte), nullptr);
  EXPECT_NE(allocate(512), nullptr);
}

TEST(SoftLimit, GivesSegmentsBackAndGoesOn) {
  CachingAllocator allocator({.capacity = 32 * kMebibyte, .may_exceed = true}, nullptr);
  Block* first = allocator.allocate(10 * kMebibyte, 0);
  allocator.allocate(20 * kMebibyte, 0);
  allocator.release(first);
  EXPECT_NE(allocator.allocate(40 * kMebibyte, 0), nullptr);
  EXPECT_EQ(allocator.figures().reserved, 60 * kMebibyte);
}

// Two segments are reserved, and little is in use of one of them.
bool fits_beside_what_is_left(bool expandable) {
  FakeDriver driver;
  CachingAllocator allocator({.capacity = 200 * kMebibyte,
                              .expandable_segments = expandable,
                              .expandable_bytes = 225 * kMebibyte},
                             &driver);
  Block* first = allocator.allocate(100 * kMebibyte, 0);
  Block* second = allocator.allocate(100 * kMebibyte, 0);
  allocator.release(first);
  allocator.release(second);
  for (int i = 0; i < 2; ++i) allocator.allocate(20 * kMebibyte, 0);
  EXPECT_EQ(allocator.figures().allocated, 40 * kMebibyte);
  EXPECT_EQ(allocator.figures().reserved, 200 * kMebibyte);
  return allocator.allocate(150 * kMebibyte, 0) != nullptr;
}

TEST(Fragmentation, FailsWithSegmentsAndPassesWithExpandableOnes) {
  EXPECT_FALSE(fits_beside_what_is_left(false));
  EXPECT_TRUE(fits_beside_what_is_left(true));
}

class ExpandableSegments : public Allocator {
 protected:
  ExpandableSegments()
      : Allocator({.capacity = 100 * kMebibyte,
                   .expandable_segments = true,
                   .expandable_bytes = 112 * kMebibyte,
                   .map_ns = 2,
                   .unmap_ns = 7}) {}
};

TEST_F(ExpandableSegments, GrowByPagesAndSplitToTheBlock) {
  Block* first = allocate(30 * kMebibyte);
  EXPECT_EQ(reserved(), 40 * kMebibyte);
  EXPECT_EQ(driver_.now, 2 * 2);
  Block* second = allocate(15 * kMebibyte);
  EXPECT_EQ(second->offset - first->offset, 30 * kMebibyte);
  EXPECT_EQ(reserved(), 60 * kMebibyte);
  Block* small = allocate(512);
  EXPECT_EQ(reserved(), 62 * kMebibyte) << "small blocks have a segment of their own";
  EXPECT_EQ(allocator_.figures().allocated, 45 * kMebibyte + 512);
  for (Block* block : {first, second, small}) allocator_.release(block);
  EXPECT_EQ(reserved(), 62 * kMebibyte);
  allocator_.empty_cache();
  EXPECT_EQ(reserved(), 0);
}

TEST_F(ExpandableSegments, GiveTheirPagesToOtherStreams) {
  Block* first = allocate(30 * kMebibyte, 1);
  Block* second = allocate(50 * kMebibyte, 1);
  EXPECT_EQ(reserved(), 80 * kMebibyte);
  driver_.ends[1] = 500;
  allocator_.release(second);
  // Four pages that stream 1 does not use; of the second one it uses a half.
  Block* other = allocate(60 * kMebibyte, 2);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(allocator_.figures().retries, 1);
  EXPECT_EQ(reserved(), 100 * kMebibyte);
  EXPECT_GE(driver_.now, 500 + 2 * 7);
  EXPECT_EQ(allocate(10 * kMebibyte, 1)->offset, 30 * kMebibyte) << "the rest of the page";
  EXPECT_EQ(allocate(11 * kMebibyte, 1), nullptr);
  allocator_.release(first);
  EXPECT_NE(allocate(20 * kMebibyte, 1), nullptr);
}

// ---- The oracle: the same rules, with lists that are searched from end to end.

class SlowAllocator {
 public:
  SlowAllocator(const Options& options, FakeDriver& driver) : options_(options), driver_(driver) {}

  // The offset of the new block; nothing if there is no room.
  std::optional<int64_t> allocate(int64_t bytes, int stream) {
    reclaim(driver_.now);
    const bool small = bytes <= kMebibyte;
    bool found = has_place(bytes, stream, small) || grow(bytes, stream, small);
    if (!found && release_oversize(bytes, stream, small)) found = grow(bytes, stream, small);
    if (!found) {
      empty_cache();
      ++retries;
      found = grow(bytes, stream, small);
    }
    if (!found) return std::nullopt;
    Segment& segment = segments_.at(place_.segment);
    Part& part = segment.parts[place_.part];
    const int64_t rest = part.bytes - bytes;
    const bool splits = small || options_.expandable_segments
                            ? rest >= 512
                            : bytes < options_.max_split_bytes && rest > kMebibyte;
    part.state = State::kUsed;
    const int64_t offset = part.offset;
    if (splits) {
      part.bytes = bytes;
      segment.parts.insert(segment.parts.begin() + static_cast<ptrdiff_t>(place_.part) + 1,
                           Part{offset + bytes, rest, State::kFree});
    }
    return offset;
  }

  void release(int64_t offset) {
    Part& part = part_at(offset);
    part.state = State::kFree;
    part.free_from_ns = 0;
    for (const int user : part.users) {
      part.state = State::kWaiting;
      part.free_from_ns = std::max(part.free_from_ns, driver_.ends[static_cast<size_t>(user)]);
    }
    part.users.clear();
    join_all();
  }

  void record(int64_t offset, int stream) {
    if (segment_of(offset).stream != stream) part_at(offset).users.insert(stream);
  }

  void empty_cache() {
    for (const auto& [begin, segment] : segments_) {
      for (const Part& part : segment.parts) {
        if (part.state == State::kWaiting) driver_.host_waits(part.free_from_ns);
      }
    }
    reclaim(kUnlimited);
    for (const bool small : {false, true}) {
      for (const Place& place : free_places(small)) give_back(place);
      // Whole segments are removed once their places are not looked at any more.
      std::erase_if(segments_, [](const auto& entry) {
        const std::vector<Part>& parts = entry.second.parts;
        return parts.size() == 1 && parts[0].state == State::kUnmapped;
      });
    }
  }

  int64_t sum(const std::set<int>& states) const {
    int64_t bytes = 0;
    for (const auto& [begin, segment] : segments_) {
      for (const Part& part : segment.parts) {
        if (states.contains(static_cast<int>(part.state))) bytes += part.bytes;
      }
    }
    return bytes;
  }
  int64_t allocated() const { return sum({kUsed}); }
  int64_t active() const { return sum({kUsed, kWaiting}); }
  int64_t reserved() const { return sum({kUsed, kWaiting, kFree}); }
  int64_t inactive_split() const {
    int64_t bytes = 0;
    for (const auto& [begin, segment] : segments_) {
      if (options_.expandable_segments || segment.parts.size() == 1) continue;
      for (const Part& part : segment.parts) {
        if (part.state == State::kFree) bytes += part.bytes;
      }
    }
    return bytes;
  }

  int64_t retries = 0;

 private:
  enum State { kUnmapped, kFree, kUsed, kWaiting };
  struct Part {
    int64_t offset = 0;
    int64_t bytes = 0;
    State state = State::kFree;
    int64_t free_from_ns = 0;
    std::set<int> users;
  };
  struct Segment {
    int stream = 0;
    bool small = false;
    std::vector<Part> parts;
  };
  struct Place {
    int64_t segment = 0;
    size_t part = 0;
    int64_t bytes = 0;
    int64_t offset = 0;
    int stream = 0;
  };

  static int64_t up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
  static int64_t page(bool small) { return (small ? 2 : 20) * kMebibyte; }

  Segment& segment_of(int64_t offset) { return std::prev(segments_.upper_bound(offset))->second; }
  Part& part_at(int64_t offset) {
    for (Part& part : segment_of(offset).parts) {
      if (part.offset == offset) return part;
    }
    throw std::out_of_range("no part");
  }
  void join_all() {
    for (auto& [begin, segment] : segments_) {
      std::vector<Part> joined;
      for (const Part& part : segment.parts) {
        const bool joins = !joined.empty() && joined.back().state == part.state &&
                           (part.state == State::kFree || part.state == State::kUnmapped);
        if (joins) {
          joined.back().bytes += part.bytes;
        } else {
          joined.push_back(part);
        }
      }
      segment.parts = joined;
    }
  }
  void reclaim(int64_t until_ns) {
    for (auto& [begin, segment] : segments_) {
      for (Part& part : segment.parts) {
        const bool passed = part.state == State::kWaiting && part.free_from_ns <= until_ns;
        if (passed) part.state = State::kFree;
      }
    }
    join_all();
  }
  // By stream, size and offset.
  std::vector<Place> free_places(bool small) const {
    std::vector<Place> places;
    for (const auto& [begin, segment] : segments_) {
      for (size_t i = 0; i < segment.parts.size(); ++i) {
        const Part& part = segment.parts[i];
        if (segment.small == small && part.state == State::kFree) {
          places.push_back({begin, i, part.bytes, part.offset, segment.stream});
        }
      }
    }
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.stream, a.bytes, a.offset) < std::tie(b.stream, b.bytes, b.offset);
    });
    return places;
  }
  int64_t can_become(const Place& place) const {
    const std::vector<Part>& parts = segments_.at(place.segment).parts;
    const bool grows =
        place.part + 1 < parts.size() && parts[place.part + 1].state == State::kUnmapped;
    return place.bytes + (grows ? parts[place.part + 1].bytes : 0);
  }
  bool has_place(int64_t bytes, int stream, bool small) {
    std::vector<Place> fitting;
    for (const Place& place : free_places(small)) {
      if (place.stream == stream && place.bytes >= bytes) fitting.push_back(place);
    }
    if (fitting.empty()) return false;
    size_t best = 0;
    while (options_.expandable_segments && best + 1 < fitting.size() &&
           can_become(fitting[best + 1]) < can_become(fitting[best])) {
      ++best;
    }
    place_ = fitting[best];
    const bool is_large = bytes >= options_.max_split_bytes;
    if (!is_large) return place_.bytes < options_.max_split_bytes;
    return place_.bytes < bytes + 20 * kMebibyte;
  }
  int64_t add_segment(int64_t bytes, int stream, bool small, State state) {
    int64_t offset = 0;
    for (const auto& [begin, segment] : segments_) {
      if (begin - offset >= bytes) break;
      offset = segment.parts.back().offset + segment.parts.back().bytes;
    }
    segments_[offset] = {stream, small, {Part{offset, bytes, state}}};
    return offset;
  }
  bool grow(int64_t bytes, int stream, bool small) {
    if (options_.expandable_segments) return expand(bytes, stream, small);
    const int64_t wanted = small                    ? 2 * kMebibyte
                           : bytes < 10 * kMebibyte ? 20 * kMebibyte
                                                    : up(bytes, 2 * kMebibyte);
    if (reserved() + wanted > options_.capacity) return false;
    place_ = {.segment = add_segment(wanted, stream, small, State::kFree)};
    driver_.now += options_.malloc_ns;
    return true;
  }
  bool expand(int64_t bytes, int stream, bool small) {
    if (bytes > options_.capacity) return false;
    int64_t at = -1;
    int64_t in = -1;
    for (const auto& [begin, segment] : segments_) {
      if (at >= 0 || segment.stream != stream || segment.small != small) continue;
      const std::vector<Part>& parts = segment.parts;
      for (size_t i = 0; i < parts.size() && at < 0; ++i) {
        if (parts[i].state != State::kUnmapped) continue;
        const size_t first = i > 0 && parts[i - 1].state == State::kFree ? i - 1 : i;
        int64_t room = 0;
        for (size_t j = first; j < parts.size() && room < bytes; ++j) {
          if (parts[j].state == State::kUsed || parts[j].state == State::kWaiting) break;
          room += parts[j].bytes;
        }
        if (room >= bytes) {
          at = parts[first].offset;
          in = begin;
        }
      }
    }
    if (at < 0) {
      in = at = add_segment(up(std::max(options_.expandable_bytes, bytes), page(small)), stream,
                            small, State::kUnmapped);
    }
    // Page by page, as far as the free bytes from `at` do not suffice.
    Segment& segment = segments_.at(in);
    while (true) {
      const auto part = std::find_if(segment.parts.begin(), segment.parts.end(),
                                     [&](const Part& each) { return each.offset == at; });
      if (part->state == State::kFree && part->bytes >= bytes) {
        place_ = {.segment = in, .part = static_cast<size_t>(part - segment.parts.begin())};
        return true;
      }
      const auto target = part->state == State::kUnmapped ? part : part + 1;
      const int64_t missing = target == part ? bytes : bytes - part->bytes;
      const int64_t mapped = std::min(up(missing, page(small)), target->bytes);
      if (reserved() + mapped > options_.capacity) return false;
      driver_.now += mapped / page(small) * options_.map_ns;
      const Part rest{target->offset + mapped, target->bytes - mapped, State::kUnmapped};
      target->bytes = mapped;
      target->state = State::kFree;
      if (rest.bytes > 0) segment.parts.insert(target + 1, rest);
      join_all();
    }
  }
  void give_back(const Place& place) {
    Segment& segment = segments_.at(place.segment);
    if (!options_.expandable_segments) {
      if (segment.parts.size() > 1) return;
      driver_.host_waits(driver_.busy_until_ns());
      driver_.now += options_.free_ns;
      segment.parts[0].state = State::kUnmapped;
      return;
    }
    const int64_t unit = page(segment.small);
    const int64_t begin = place.segment + up(place.offset - place.segment, unit);
    const int64_t end = place.segment + (place.offset + place.bytes - place.segment) / unit * unit;
    if (begin >= end) return;
    driver_.host_waits(driver_.ends[static_cast<size_t>(segment.stream)]);
    driver_.now += (end - begin) / unit * options_.unmap_ns;
    std::vector<Part> parts;
    for (const Part& part : segment.parts) {
      if (part.offset != place.offset) {
        parts.push_back(part);
        continue;
      }
      if (begin > part.offset) parts.push_back({part.offset, begin - part.offset, State::kFree});
      parts.push_back({begin, end - begin, State::kUnmapped});
      const int64_t behind = part.offset + part.bytes - end;
      if (behind > 0) parts.push_back({end, behind, State::kFree});
    }
    segment.parts = parts;
    join_all();
  }
  bool release_oversize(int64_t bytes, int stream, bool small) {
    if (options_.max_split_bytes == kUnlimited || options_.expandable_segments) return false;
    const int64_t wanted = std::max(bytes, options_.max_split_bytes);
    std::vector<Place> large;
    for (const Place& place : free_places(small)) {
      if (place.stream == stream && place.bytes >= options_.max_split_bytes) {
        large.push_back(place);
      }
    }
    const auto remove = [&](const Place& place) {
      driver_.host_waits(driver_.busy_until_ns());
      driver_.now += options_.free_ns;
      segments_.erase(place.segment);
    };
    for (const Place& place : large) {
      if (place.bytes < wanted) continue;
      remove(place);
      return true;
    }
    int64_t released = 0;
    while (released < wanted && !large.empty()) {
      released += large.back().bytes;
      remove(large.back());
      large.pop_back();
    }
    return released >= wanted;
  }
  const Options options_;
  FakeDriver& driver_;
  std::map<int64_t, Segment> segments_;  // by offset
  Place place_;                          // what was found
};

struct Case {
  const char* name;
  Options options;
};

class LongSequences : public ::testing::TestWithParam<Case> {};

TEST_P(LongSequences, GoAsInTheSlowModel) {
  int64_t refused = 0;
  int64_t retries = 0;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    FakeDriver driver;
    FakeDriver slow_driver;
    CachingAllocator fast(GetParam().options, &driver);
    SlowAllocator slow(GetParam().options, slow_driver);
    std::mt19937 random(seed);
    const auto draw = [&random](int64_t below) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
    };
    std::vector<Block*> blocks;
    for (int i = 0; i < 2000; ++i) {
      const int64_t what = draw(100);
      // Fuller and emptier in turn.
      const int64_t allocations = i / 300 % 2 == 0 ? 55 : 35;
      if (what < allocations) {
        constexpr int64_t kLargest[] = {16 * kKibibyte, kMebibyte, 12 * kMebibyte, 60 * kMebibyte};
        const int64_t bytes = (1 + draw(kLargest[draw(4)] / 512)) * 512;
        const auto stream = static_cast<int>(draw(3));
        Block* block = fast.allocate(bytes, stream);
        const std::optional<int64_t> expected = slow.allocate(bytes, stream);
        ASSERT_EQ(block != nullptr, expected.has_value()) << "seed " << seed << ", " << i;
        if (block == nullptr) {
          ++refused;
        } else {
          ASSERT_EQ(block->offset, *expected) << "seed " << seed << ", " << i;
          blocks.push_back(block);
        }
      } else if (what < 90 && !blocks.empty()) {
        const auto index = static_cast<size_t>(draw(static_cast<int64_t>(blocks.size())));
        slow.release(blocks[index]->offset);
        fast.release(blocks[index]);
        blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(index));
      } else if (what < 97 && !blocks.empty()) {
        Block* block = blocks[static_cast<size_t>(draw(static_cast<int64_t>(blocks.size())))];
        const auto stream = static_cast<int>(draw(4));
        slow.record(block->offset, stream);
        fast.record(block, stream);
      } else if (what == 99 && draw(10) == 0) {
        fast.empty_cache();
        slow.empty_cache();
      } else {
        const auto stream = static_cast<size_t>(draw(4));
        driver.ends[stream] = slow_driver.ends[stream] =
            std::max(driver.ends[stream], driver.now) + draw(2000);
        driver.now += 300;
        slow_driver.now += 300;
      }
      ASSERT_EQ(driver.now, slow_driver.now) << "seed " << seed << ", " << i;
      ASSERT_EQ(fast.figures().allocated, slow.allocated()) << "seed " << seed << ", " << i;
      ASSERT_EQ(fast.figures().active, slow.active());
      ASSERT_EQ(fast.figures().reserved, slow.reserved());
      ASSERT_EQ(fast.figures().retries, slow.retries);
      ASSERT_EQ(fast.inactive_split(), slow.inactive_split());
    }
    retries += slow.retries;
    for (Block* block : blocks) fast.release(block);
    fast.empty_cache();
    EXPECT_EQ(fast.figures().reserved, 0);
    EXPECT_EQ(fast.figures().segments_made, fast.figures().segments_freed);
  }
  // The sequences reach what they are for.
  EXPECT_GT(refused, 0);
  EXPECT_GT(retries, refused);
}

INSTANTIATE_TEST_SUITE_P(
    Options, LongSequences,
    ::testing::Values(Case{"usual", {.capacity = 500 * kMebibyte, .malloc_ns = 3, .free_ns = 5}},
                      Case{"max_split",
                           {.capacity = 500 * kMebibyte,
                            .max_split_bytes = 24 * kMebibyte,
                            .malloc_ns = 3,
                            .free_ns = 5}},
                      Case{"expandable",
                           {.capacity = 500 * kMebibyte,
                            .expandable_segments = true,
                            .expandable_bytes = 560 * kMebibyte,
                            .map_ns = 2,
                            .unmap_ns = 7}}),
    [](const auto& case_of) { return std::string(case_of.param.name); });

TEST(AddressRangeDeathTest, AllowsNoAccess) {
  volatile char* bytes = AddressRange::at(512, 512);
  char* const base = AddressRange::at(0, 512);
  EXPECT_EQ(bytes - base, 512);
  EXPECT_TRUE(AddressRange::contains(base) && !AddressRange::contains(&bytes));
  EXPECT_DEATH(bytes[0] = 1, "");
}

}  // namespace
}  // namespace accelerate::simulator
