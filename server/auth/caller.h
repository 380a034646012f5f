// Who makes a call, and what that lets them do.
#pragma once

#include <map>
#include <string>

namespace telar::server::auth {

// Each may do what those before it may.
enum class Role { kNone, kViewer, kSubmitter, kOperator, kAdmin };
const char* role_name(Role role);                      // "viewer"
bool parse_role(const std::string& text, Role& role);  // False: no such role.

inline constexpr const char* kEveryProject = "*";

struct Caller {
  enum class Kind {
    kAnyone,  // No authentication is configured: whoever reaches the port may do everything.
    kPerson,
    kNode,
  };
  Kind kind = Kind::kAnyone;
  std::string name;                   // Of the user or node; empty for kAnyone.
  std::map<std::string, Role> roles;  // Of a person: project, or "*" for all.
  std::string fingerprint;            // Of a person's token; of a node's certificate, where some are revoked.

  Role role_in(const std::string& project) const;  // With what holds for every project.
  Role highest() const;                            // In whichever project.
};

// Who made the call that this thread is answering; kAnyone outside of one.
const Caller& current_caller();

// Sets it while it lives. One a thread.
class CallerScope {
 public:
  explicit CallerScope(const Caller& caller);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;
  CallerScope& operator=(const CallerScope&) = delete;
};

}  // namespace telar::server::auth
