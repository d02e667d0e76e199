/// What is not to be shown, by its name or by its form.
///
///   is_secret_name("COMET_API_KEY")                      // also "apiKey", "net/db_password"
///   without_url_secrets("http://me:pw@host/x")           // "http://***@host/x"
///   shown_value("net", {{"lr", 0.1}, {"key", "k"}})      // "{'lr': 0.1, 'key': '***'}"
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/platform/environment.h"
#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// Whether the last word of a part of the name between slashes is "key", "pat", or ends in
/// apikey, accesskey, secretkey, privatekey, token, password, passwd, passphrase, secret or
/// credential, or the plural of one but token. "max_tokens", "key_size" and "monkey" are none.
bool is_secret_name(std::string_view name);

/// The text with "***" in place of what URLs in it have before the "@" of their host.
std::string without_url_secrets(std::string_view text);

/// The value of that name as text, with "***" in place of secrets, also of those in dictionaries
/// and lists.
std::string shown_value(std::string_view name, const TrackerValue& value);

class Secrets {
 public:
  /// The values of the variables, and of the texts in `kwargs` (in lists and dictionaries too),
  /// whose names are secret, see trackers/common/secrets.h. One of fewer than six characters
  /// is none.
  Secrets(const Environment& environment, const TrackerDict& kwargs);

  /// `text` with "***" in their places, and in place of names and passwords in URLs.
  std::string mask(std::string_view text) const;

 private:
  void add(bool is_secret, const TrackerValue& value);

  std::vector<std::string> values_;  // longest first: one may hold another
};

}  // namespace accelerate::trackers
