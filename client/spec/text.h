// Checks on the raw text of a spec, before any parser sees it.
#pragma once

#include <string>

#include "client/spec/problem.h"

namespace telar::client {

// Where the first byte stands that is not UTF-8 (RFC 3629: no overlong forms, no surrogates) or is NUL; line 0 = none.
Place first_bad_byte(const std::string& text);

// JSON writes characters beyond U+FFFF as a pair of \u escapes, which YAML does not know: turns each pair into the
// character itself. The rest of the text stays as it is.
std::string join_surrogates(const std::string& text);

}  // namespace telar::client
