#include "trackers/common/secrets.h"

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

TEST(SecretNamesTest, LastWordsSayIt) {
  for (const char* const name :
       {"key", "COMET_API_KEY", "apiKey", "api-key-2", "apikey", "HF_TOKEN", "mytoken", "authToken",
        "Db_Password", "PGPASSWD", "GITHUB_PAT", "client.secret", "AWS_CREDENTIALS", "api_keys",
        "login/password", "credentials/user"}) {
    EXPECT_TRUE(is_secret_name(name)) << name;
  }
  for (const char* const name : {"", "lr", "max_tokens", "key_size", "KEYBOARD", "monkey", "PATH",
                                 "tokenizer", "secretary", "net/path", "_", "42"}) {
    EXPECT_FALSE(is_secret_name(name)) << name;
  }
}

TEST(SecretNamesTest, UrlsLoseWhatIsBeforeTheirHost) {
  EXPECT_EQ(without_url_secrets("at http://me:p@w@host:80/x@y and ftp://tok@h, http://h/a@b"),
            "at http://***@host:80/x@y and ftp://***@h, http://h/a@b");
  EXPECT_EQ(without_url_secrets("://"), "://");
  EXPECT_EQ(without_url_secrets("a@b"), "a@b");
}

TEST(SecretNamesTest, ValuesAreShownWithoutSecrets) {
  EXPECT_EQ(shown_value("lr", 0.1), "0.1");
  EXPECT_EQ(shown_value("hub_token", "hf_abc"), "***");
  EXPECT_EQ(shown_value("url", "http://me:pw@host/x"), "http://***@host/x");
  EXPECT_EQ(shown_value("net", {{"depth", 2}, {"api_key", "k"}, {"a", {{"password", 1}}}}),
            "{'depth': 2, 'api_key': '***', 'a': {'password': '***'}}");
  EXPECT_EQ(shown_value("all", TrackerList{1, TrackerDict{{"token", "t"}}}),
            "[1, {'token': '***'}]");
}

TEST(SecretNamesTest, TensorsOfOneElementAreShownAsIt) {
  EXPECT_EQ(shown_value("n", TensorValue{.dtype = "int64", .values = {3}}), "3");
  EXPECT_EQ(shown_value("n", TensorValue{.dtype = "float32", .values = {0.5}}), "0.5");
  EXPECT_EQ(shown_value("n", TensorValue{.dtype = "bfloat16", .values = {3}}), "3.0");
  EXPECT_EQ(shown_value("n", TensorValue{.dtype = "bool", .values = {1}}), "True");
  EXPECT_EQ(shown_value("api_key", TensorValue{.dtype = "int64", .values = {3}}), "***");
}

TEST(SecretsTest, MasksValuesOfVariablesThatAreNamedLikeSecrets) {
  Environment environment;
  environment.set("COMET_API_KEY", "comet-4711");
  environment.set("CLEARML_API_SECRET_KEY", "comet-4711-and-more");
  environment.set("HF_TOKEN", "hf_abcdef");
  environment.set("Db_Password", "correct horse");
  environment.set("PROJECT_NAME", "project-name");
  environment.set("KEYBOARD", "a-keyboard");
  const Secrets secrets(environment, {});
  EXPECT_EQ(secrets.mask("no comet-4711, comet-4711-and-more, hf_abcdef or correct horse"),
            "no ***, ***, *** or ***");
  EXPECT_EQ(secrets.mask("project-name a-keyboard"), "project-name a-keyboard");
}

TEST(SecretsTest, MasksTextsOfKwargs) {
  const Secrets secrets(Environment(),
                        {{"api_key", "0123456"}, {"login", {{"password", "abcdefg"}}}, {"key", 5}});
  EXPECT_EQ(secrets.mask("0123456 abcdefg 5"), "*** *** 5");
}

TEST(SecretsTest, LeavesShortOnesAlone) {
  Environment environment;
  environment.set("USE_TOKEN", "true");
  environment.set("EMPTY_TOKEN", "");
  environment.set("FIVE_TOKEN", "vwxyz");
  environment.set("SIX_TOKEN", "abcdef");
  EXPECT_EQ(Secrets(environment, {}).mask("true vwxyz abcdef"), "true vwxyz ***");
}

TEST(SecretsTest, MasksListsAndUrls) {
  const Secrets secrets(Environment(), {{"tokens_by_host", TrackerList{"not-masked"}},
                                        {"api_keys", TrackerList{"list-1", "list-2"}},
                                        {"hosts", TrackerList{TrackerDict{{"passwd", "inner-1"}}}},
                                        {"credentials", {{"user", "someone"}}}});
  EXPECT_EQ(secrets.mask("list-1 list-2 inner-1 someone not-masked http://a:b@host/x"),
            "*** *** *** *** not-masked http://***@host/x");
}

}  // namespace
}  // namespace accelerate::trackers
