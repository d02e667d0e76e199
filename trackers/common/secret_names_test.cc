#include "trackers/common/secret_names.h"

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

}  // namespace
}  // namespace accelerate::trackers
