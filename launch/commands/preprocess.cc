// `accelerate preprocess INPUT OUTPUT_PREFIX`: files of tokens from JSON lines.
//
// See accelerate/files/formats/preprocess_tokens.h.

#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/files/formats/preprocess_tokens.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"

namespace accelerate::launcher::commands {
namespace {

constexpr char kName[] = "preprocess";

struct Options {
  std::string input;
  std::string tokenizer = to_string(TokenizerKind::kBytes);
  TokenOptions tokens;
};

absl::StatusOr<TokenOptions> token_options(const Options& options) {
  TokenOptions tokens = options.tokens;
  const bool has_vocabulary = !tokens.vocabulary_file.empty();
  const auto kind = accelerate::value_of<TokenizerKind>(options.tokenizer);
  if (!kind) return absl::InvalidArgumentError("--tokenizer is bytes, vocabulary or numbers");
  tokens.tokenizer = *kind;
  if (options.input.empty() || tokens.output_prefix.empty()) {
    return absl::InvalidArgumentError(
        "a file of JSON lines and a prefix for the output are needed; see accelerate preprocess "
        "--help");
  }
  if (has_vocabulary != (tokens.tokenizer == TokenizerKind::kVocabulary)) {
    return absl::InvalidArgumentError(
        "--tokenizer vocabulary and --vocabulary_file FILE need each other");
  }
  if (tokens.end_token && !tokens.append_end) {
    return absl::InvalidArgumentError("--end_token needs --append_eod");
  }
  return tokens;
}

int run(const Options& options, Invocation& invocation) {
  const absl::StatusOr<TokenOptions> tokens = token_options(options);
  if (!tokens.ok()) return fail(invocation, kName, tokens.status(), kExitBadCommandLine);
  HostFiles files;
  const absl::StatusOr<PreprocessedTokens> made = preprocess_tokens(files, options.input, *tokens);
  if (!made.ok()) return fail(invocation, kName, made.status());
  if (made->empty_lines > 0) {
    invocation.err << "accelerate preprocess: " << made->empty_lines
                   << " lines have no tokens and are left out\n";
  }
  invocation.out << made->documents << " documents, " << made->tokens << " tokens";
  if (made->end_token) invocation.out << ", each document ends with " << *made->end_token;
  invocation.out << ": " << made->bin_path << ", " << made->idx_path << "\n";
  return finish(invocation);
}

void declare(CLI::App& app, Options& options) {
  app.footer(
      "The files are OUTPUT_PREFIX_text_document.bin and .idx, as Megatron-LM's data is.\n"
      "Option names may be spelt with _ or -.\n"
      "Exit code: 0; 1 if the input cannot be read; 2 for a bad command line.");
  add_value(app, "input", options.input, "", "file with an object in JSON on each line");
  add_value(app, "output_prefix", options.tokens.output_prefix, "", "how the files' names begin");
  add_value(app, "--tokenizer", options.tokenizer, "KIND",
            "bytes (default), vocabulary, or numbers that another tokenizer made");
  add_value(app, "--vocabulary_file", options.tokens.vocabulary_file, "PATH",
            "of --tokenizer vocabulary: an entry a line");
  add_value(app, "--json_key", options.tokens.json_key, "KEY",
            "the member of each object that is read");
  app.add_flag("--append_eod", options.tokens.append_end, "end each document with a token");
  add_value(app, "--end_token", options.tokens.end_token, "INT",
            "that token; by default the first one behind the tokenizer's");
}

}  // namespace

const Command kPreprocess = {kName, "Make files of tokens of JSON lines.",
                             with_options<declare, run>};

}  // namespace accelerate::launcher::commands
