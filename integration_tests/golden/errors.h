/// Which error of ours stands for an error that HF Accelerate raised, or that a decision promises.
///
/// In a recorded answer an error is `{"type": Python's name, "message": text}`. In ours it is
/// `{"ours": bool, "type": name, "message": text}`, see answers.h. One table says which of our
/// types stand for one of HF Accelerate's, another which words ours must contain for a phrase of
/// the message. No error of ours matches a type that the table does not know. Where the other table
/// does not know the message, ours must name what HF Accelerate's names: one of its words in quotes
/// or its numbers; a message without any matches none of ours.
/// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// The error that a decision expects: one of these types of ours that contains one of `says`, or
/// any words if there are none.
nlohmann::json our_error(const std::vector<std::string>& types,
                         const std::vector<std::string>& says = {});

/// Makes `out` an error of ours. Where it is one already, either of the two is expected; what HF
/// Accelerate refused as well stays as it was recorded.
void expect_our_error(nlohmann::json& out, const std::vector<std::string>& types,
                      const std::vector<std::string>& says = {});

/// The reason why `got` does not answer the error `expected`; nothing if it does. Both are the
/// objects under "error".
std::optional<std::string> error_difference(const nlohmann::json& expected,
                                            const nlohmann::json& got);

}  // namespace accelerate::golden
