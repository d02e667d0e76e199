// Runs GoogleTest on every rank of a job. Rank 0 tells how it goes; the others only of failures.
#include <iostream>
#include <sstream>

#include <gtest/gtest.h>

#include "accelerate/accelerate.h"

namespace {

class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::ostringstream text;
    text << "rank " << rank_ << ": "
         << testing::UnitTest::GetInstance()->current_test_info()->name() << ": "
         << result.file_name() << ":" << result.line_number() << ": " << result.message() << "\n";
    std::cerr << text.str() << std::flush;
  }

 private:
  const int rank_;
};

int run_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int rank = accelerate::Runtime::current().topology().rank;
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  return RUN_ALL_TESTS();
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, run_tests); }
