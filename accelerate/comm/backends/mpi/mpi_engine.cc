#include "accelerate/comm/backends/mpi/mpi_engine.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/values/texts.h"

namespace accelerate::internal {
namespace {

using std::chrono::microseconds;

// A waiting thread polls for so long: an answer on the same machine takes a microsecond.
constexpr microseconds kSpins(20);
// Then it lets others run; and then it sleeps, for a rank that is late is mostly very late.
constexpr microseconds kYields(500);
constexpr microseconds kShortestSleep(20);
constexpr microseconds kLongestSleep(100);
// The thread stays awake for so long after the last operation: being woken costs its caller more
// than the thread costs the machine.
constexpr microseconds kLingers(5000);
constexpr microseconds kLingeringSleep(200);

// Later times may be none that the clock can tell.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

// How long to rest between two looks that found nothing.
class Rest {
 public:
  // An engine whose rank has nothing else to do polls more often.
  explicit Rest(bool computes) : computes_(computes) {}

  void something_happened() { *this = Rest(computes_); }

  void take() {
    if (!computes_) {
      const auto now = std::chrono::steady_clock::now();
      if (since_ == std::chrono::steady_clock::time_point()) since_ = now;
      if (now - since_ < kSpins) return;
      if (now - since_ < kYields) {
        sched_yield();
        return;
      }
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }

 private:
  bool computes_;
  std::chrono::steady_clock::time_point since_{};
  microseconds sleep_ = kShortestSleep;
};

}  // namespace

MpiWork::MpiWork(std::shared_ptr<MpiGroup> group, c10d::OpType op,
                 std::chrono::milliseconds timeout, Tensors results, Tensors kept)
    : Work(group->rank, op),
      group_(std::move(group)),
      timeout_(std::min(timeout <= kNoTimeout ? group_->timeout : timeout, kLongest)),
      deadline_(Clock::now() + timeout_),
      results_(std::move(results)),
      kept_(std::move(kept)) {
  link_.rank = group_->rank;
  link_.size = group_->size();
  link_.staging = group_->staging;
}

std::string MpiWork::name() const { return absl::StrCat(op_name(opType_), peer_); }

bool MpiWork::isCompleted() {
  if (!done()) MpiEngine::get().poll();
  return done();
}

bool MpiWork::wait(std::chrono::milliseconds timeout) {
  const bool own = timeout <= kNoTimeout;
  if (!done()) {
    MpiEngine::get().wait(*this, own ? deadline_ : Clock::now() + std::min(timeout, kLongest));
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void MpiWork::abort() {
  MpiEngine::get().fail(*group_, std::make_exception_ptr(
                                     c10::DistBackendError(absl::StrCat(name(), " was aborted"))));
}

c10::intrusive_ptr<c10::ivalue::Future> MpiWork::getFuture() {
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    late = published_;
  }
  if (late) complete(*future_);
  return future_;
}

void MpiWork::publish() {
  {
    const std::lock_guard lock(mutex_);
    published_ = true;
    if (!future_) return;
  }
  complete(*future_);
}

void MpiWork::complete(c10::ivalue::Future& future) const {
  if (exception_) {
    future.setError(exception_);
  } else {
    future.markCompleted(c10::IValue(results_));
  }
}

MpiEngine& MpiEngine::get() {
  // Never destroyed: the process may end while other threads use it.
  static auto* engine = new MpiEngine();
  return *engine;
}

MpiEngine::MpiEngine() {
  int initialized = 0;
  int finalized = 0;
  int threads = MPI_THREAD_SERIALIZED;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  TORCH_CHECK(finalized == 0, "the program has ended MPI (MPI_Finalize) before it made a group");
  if (initialized == 0) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads),
              "MPI_Init_thread");
    finalizes_ = true;
  } else {
    MPI_Query_thread(&threads);
  }
  TORCH_CHECK(threads >= MPI_THREAD_SERIALIZED,
              "MPI was initialised for one thread only; the program has to ask for "
              "MPI_THREAD_SERIALIZED, or leave MPI_Init to the backend");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  int* limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
  max_tag_ = found != 0 ? *limit : 32767;  // MPI promises that many.
  thread_ = std::thread([this] { run(); });
  on_exit(&MpiEngine::at_exit, this);
}

std::string MpiEngine::publish(const std::string& text, std::chrono::milliseconds timeout) {
  std::array<char, 4096> page{};
  TORCH_CHECK_VALUE(text.size() < page.size(), "a text of ", text.size(), " bytes for all ranks");
  std::copy(text.begin(), text.end(), page.begin());
  const auto deadline = Clock::now() + timeout;
  const std::lock_guard lock(mutex_);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Ibcast(page.data(), static_cast<int>(page.size()), MPI_BYTE, 0, MPI_COMM_WORLD, &request),
      "MPI_Ibcast");
  Rest rest(/*computes=*/false);
  for (int done = 0; done == 0; rest.take()) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Ibcast");
    if (done == 0 && Clock::now() >= deadline) {
      throw c10::DistBackendError(absl::StrCat("rank 0 said nothing for ", timeout.count(), " ms"));
    }
  }
  return std::string(page.data());
}

std::shared_ptr<MpiGroup> MpiEngine::make_group(std::vector<int> members,
                                                std::chrono::milliseconds timeout) {
  auto group = std::make_shared<MpiGroup>();
  group->rank =
      static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  group->timeout = timeout;
  const std::lock_guard lock(mutex_);
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group ours = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &ours),
            "MPI_Group_incl");
  for (MPI_Comm* communicator : {&group->collectives, &group->messages}) {
    check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, ours, /*tag=*/0, communicator),
              "MPI_Comm_create_group");
    MPI_Comm_set_errhandler(*communicator, MPI_ERRORS_RETURN);
  }
  MPI_Group_free(&ours);
  MPI_Group_free(&world);
  group->members = std::move(members);
  return group;
}

void MpiEngine::free_group(MpiGroup& group) {
  const std::lock_guard lock(mutex_);
  int finalized = 0;
  MPI_Finalized(&finalized);
  // Work that failed, or was not waited for, may still have messages under way.
  const bool busy = std::any_of(active_.begin(), active_.end(),
                                [&](const WorkPtr& work) { return work->group_.get() == &group; });
  if (finalized != 0 || group.failure || busy) return;
  MPI_Comm_free(&group.collectives);
  MPI_Comm_free(&group.messages);
}

void MpiEngine::start(const WorkPtr& work, bool collective) {
  Works ended;
  {
    const std::lock_guard lock(mutex_);
    MpiGroup& group = *work->group_;
    if (group.failure) std::rethrow_exception(group.failure);
    Link& link = work->link_;
    if (!collective) {
      TORCH_CHECK_VALUE(link.tag >= 0 && link.tag <= max_tag_, work->name(),
                        ": tags are from 0 to ", max_tag_);
      link.communicator = group.messages;
      begin(work, ended);
    } else {
      link.communicator = group.collectives;
      link.tag = static_cast<int>(group.calls++ % static_cast<uint32_t>(max_tag_));
      group.queue.push_back(work);
      if (group.queue.size() == 1) begin(work, ended);
    }
  }
  for (const WorkPtr& other : ended) other->publish();
  if (asleep_.load()) {
    {
      const std::lock_guard lock(mutex_);
    }
    woken_.notify_one();
  }
}

void MpiEngine::begin(const WorkPtr& work, Works& ended) {
  active_.push_back(work);
  advance(work, ended);
}

bool MpiEngine::advance(const WorkPtr& work, Works& ended) {
  try {
    if (!work->schedule_.ready()) return false;
    if (!work->schedule_.advance()) return true;
  } catch (...) {
    fail(*work->group_,
         std::make_exception_ptr(c10::DistBackendError(
             absl::StrCat("rank ", rank_, ": ", work->name(), " failed: ", exception_text()))),
         ended);
    return true;
  }
  end(work, ended);
  return true;
}

void MpiEngine::end(const WorkPtr& work, Works& ended) {
  // The argument may be the list's own element.
  const WorkPtr kept = work;
  active_.erase(std::find(active_.begin(), active_.end(), kept));
  kept->done_.store(true, std::memory_order_release);
  ended.push_back(kept);
  auto& queue = kept->group_->queue;
  if (queue.empty() || queue.front() != kept) return;
  queue.pop_front();
  if (!queue.empty()) {
    const WorkPtr next = queue.front();
    begin(next, ended);
  }
}

void MpiEngine::fail(MpiGroup& group, const std::exception_ptr& failure, Works& ended) {
  if (group.failure) return;
  group.failure = failure;
  auto give_up = [&](const WorkPtr& work) {
    work->exception_ = failure;
    for (const auto& transfers : work->link_.opened) transfers->cancel();
    abandoned_.push_back(work);
    work->done_.store(true, std::memory_order_release);
    ended.push_back(work);
  };
  std::erase_if(active_, [&](const WorkPtr& work) {
    if (work->group_.get() != &group) return false;
    give_up(work);
    return true;
  });
  for (size_t i = 1; i < group.queue.size(); ++i) give_up(group.queue[i]);
  group.queue.clear();
}

void MpiEngine::fail(MpiGroup& group, std::exception_ptr failure) {
  Works ended;
  {
    const std::lock_guard lock(mutex_);
    fail(group, failure, ended);
  }
  for (const WorkPtr& work : ended) work->publish();
}

std::exception_ptr MpiEngine::late(MpiWork& work) const {
  std::string missing;
  if (Transfers* awaited = work.schedule_.awaited()) {
    std::vector<int> ranks;
    for (int rank : awaited->missing()) ranks.push_back(work.group_->members[rank]);
    if (!ranks.empty()) missing = absl::StrCat(" for ", rank_list(ranks));
  }
  return std::make_exception_ptr(c10::DistBackendError(
      absl::StrCat("rank ", rank_, ": ", work.name(), " timed out after ", work.timeout_.count(),
                   " ms, waiting", missing.empty() ? " for other operations" : missing)));
}

bool MpiEngine::advance_all(Works& ended) {
  bool moved = false;
  for (size_t i = 0; i < active_.size();) {
    const WorkPtr work = active_[i];
    moved |= advance(work, ended);
    // An operation that has ended was replaced by another at this place.
    if (i < active_.size() && active_[i] == work) ++i;
  }
  const auto now = Clock::now();
  for (size_t i = 0; i < active_.size();) {
    const WorkPtr work = active_[i];
    if (now < work->deadline()) {
      ++i;
    } else {
      fail(*work->group_, late(*work), ended);
      i = 0;
    }
  }
  if (!abandoned_.empty()) {
    std::erase_if(abandoned_, [](const WorkPtr& work) {
      return std::all_of(work->link_.opened.begin(), work->link_.opened.end(),
                         [](const auto& transfers) { return transfers->done(); });
    });
  }
  return moved;
}

bool MpiEngine::poll() {
  Works ended;
  bool moved = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // Somebody else drives.
    moved = advance_all(ended);
  }
  for (const WorkPtr& work : ended) work->publish();
  return moved;
}

void MpiEngine::wait(MpiWork& work, Clock::time_point deadline) {
  ++waiters_;
  Rest rest(/*computes=*/false);
  while (!work.done()) {
    if (poll()) {
      rest.something_happened();
      continue;
    }
    if (work.done()) break;
    if (deadline < work.deadline() && Clock::now() >= deadline) {
      std::exception_ptr failure;
      {
        const std::lock_guard lock(mutex_);
        failure = late(work);
      }
      fail(*work.group_, failure);
      break;
    }
    rest.take();
  }
  --waiters_;
}

void MpiEngine::run() {
  // Sleep for as long as asked, not 50 us more.
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  auto last = Clock::now();
  Rest rest(/*computes=*/true);
  while (!stopping_.load()) {
    bool idle = false;
    {
      std::unique_lock lock(mutex_);
      idle = active_.empty() && abandoned_.empty();
      if (idle && Clock::now() - last > kLingers) {
        asleep_.store(true);
        woken_.wait(lock, [this] { return stopping_.load() || !active_.empty(); });
        asleep_.store(false);
        continue;
      }
    }
    if (idle || waiters_.load() > 0) {
      if (!idle) last = Clock::now();
      std::this_thread::sleep_for(kLingeringSleep);
    } else {
      last = Clock::now();
      if (poll()) {
        rest.something_happened();
      } else {
        rest.take();
      }
    }
  }
}

void MpiEngine::at_exit(int status, void* engine) {
  static_cast<MpiEngine*>(engine)->shut_down(status);
}

void MpiEngine::shut_down(int status) {
  if (getpid() != process_) return;  // A child of ours has neither the thread nor MPI.
  stopping_.store(true);
  {
    const std::lock_guard lock(mutex_);
  }
  woken_.notify_one();
  thread_.join();
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalizes_ || finalized != 0) return;
  // An operation that was not waited for still ends, if only by its time-out.
  while (!active_.empty()) {
    if (!poll()) sched_yield();
  }
  poll();
  if (status == 0 && abandoned_.empty()) MPI_Finalize();
}

}  // namespace accelerate::internal
