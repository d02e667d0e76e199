/// Keeps keys and passwords out of messages and files, by their names and their forms.
///
///   is_secret_name("COMET_API_KEY")                      // also "apiKey", "net/db_password"
///   without_url_secrets("http://me:pw@host/x")           // "http://***@host/x"
///   shown_value("net", {{"lr", 0.1}, {"key", "k"}})      // "{'lr': 0.1, 'key': '***'}"
///
/// Threads: any, on const objects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/platform/environment.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// Whether the last word of a part of the name between slashes is "key", "pat", or ends in
/// apikey, accesskey, secretkey, privatekey, token, password, passwd, passphrase, secret or
/// credential, or the plural of one of these except token. "max_tokens", "key_size" and "monkey" do
/// not count.
bool is_secret_name(std::string_view name);

/// The text with "***" in place of the credentials in its URLs.
std::string without_url_secrets(std::string_view text);

/// The value of that name as Python formats it in a message, with "***" in place of secrets, also
/// within dictionaries and lists. A tensor without dimensions is shown as its number.
std::string shown_value(std::string_view name, const TrackerValue& value);

class Secrets {
 public:
  /// The values of the variables, and of the texts in `kwargs` (in lists and dictionaries too),
  /// whose names are secret, see trackers/common/secrets.h. One of fewer than six characters
  /// is none.
  Secrets(const Environment& environment, const TrackerDict& kwargs);

  /// The text with "***" in place of the secrets and of credentials in URLs.
  std::string mask(std::string_view text) const;

 private:
  void add(bool is_secret, const TrackerValue& value);

  std::vector<std::string> values_;  // longest first: a value may contain another
};

}  // namespace accelerate::trackers
