#include "trackers/bridge/secrets.h"

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

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
  EXPECT_EQ(Secrets(environment, {}).mask("true"), "true");
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
