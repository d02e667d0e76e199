#include "accelerate/base/status.h"

#include <memory>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

struct CodedError : std::runtime_error {
  explicit CodedError(const absl::Status& status)
      : std::runtime_error(std::string(status.message())), code(status.code()) {}
  absl::StatusCode code;
};

template <typename Error>
std::string error_of(const absl::Status& status) {
  try {
    throw_if_error<Error>(status);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

absl::StatusOr<std::unique_ptr<int>> number(int value) {
  if (value < 0) return absl::OutOfRangeError("below 0");
  return std::make_unique<int>(value);
}

// Both macros may stand in one block, behind an if without braces as well.
absl::StatusOr<int> sum(int a, int b, const absl::Status& before) {
  if (a == 0) ACCELERATE_RETURN_IF_ERROR(before);
  ACCELERATE_ASSIGN_OR_RETURN(const std::unique_ptr<int> one, number(a));
  std::unique_ptr<int> other;
  ACCELERATE_ASSIGN_OR_RETURN(other, number(b));
  return *one + *other;
}

TEST(EarlyReturns, ReturnTheStatusOrGoOnWithTheValue) {
  const absl::Status torn = absl::DataLossError("torn");
  EXPECT_EQ(*sum(1, 2, torn), 3);
  EXPECT_EQ(*sum(0, 2, absl::OkStatus()), 2);
  EXPECT_EQ(sum(0, 2, torn).status(), torn);
  EXPECT_EQ(sum(-1, 2, torn).status(), absl::OutOfRangeError("below 0"));
  EXPECT_EQ(sum(1, -2, torn).status(), absl::OutOfRangeError("below 0"));
}

TEST(InFile, PutsThePathBeforeAProblem) {
  EXPECT_TRUE(in_file("a.json", absl::OkStatus()).ok());
  EXPECT_EQ(in_file("a.json", absl::DataLossError("torn")), absl::DataLossError("a.json: torn"));
  EXPECT_EQ(**in_file("a.json", number(3)), 3);
  EXPECT_EQ(in_file("a.json", number(-1)).status(), absl::OutOfRangeError("a.json: below 0"));
}

TEST(ThrowIfError, ThrowsTheMessageAsTheErrorThatIsAskedFor) {
  EXPECT_EQ(error_of<std::runtime_error>(absl::OkStatus()), "");
  EXPECT_EQ(error_of<std::runtime_error>(absl::DataLossError("torn")), "torn");
  EXPECT_EQ(error_of<std::invalid_argument>(absl::DataLossError("torn")), "torn");
  try {
    throw_if_error<CodedError>(absl::DataLossError("torn"));
    FAIL();
  } catch (const CodedError& error) {
    EXPECT_EQ(error.code, absl::StatusCode::kDataLoss);
  }
}

TEST(ValueOrThrow, ReturnsTheValue) {
  EXPECT_EQ(value_or_throw(absl::StatusOr<int>(3)), 3);
  EXPECT_THROW(value_or_throw(absl::StatusOr<int>(absl::NotFoundError("gone"))),
               std::runtime_error);
}

TEST(AsStatus, CatchesExceptions) {
  const auto parse = [](const std::string& text) {
    return as_status(absl::StatusCode::kInvalidArgument,
                     [&]() -> absl::StatusOr<int> { return std::stoi(text); });
  };
  EXPECT_EQ(*parse("12"), 12);
  EXPECT_EQ(parse("x").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accelerate
