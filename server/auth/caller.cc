#include "server/auth/caller.h"

#include <algorithm>

namespace telar::server::auth {
namespace {

constexpr const char* kNames[] = {"none", "viewer", "submitter", "operator", "admin"};
thread_local const Caller* current = nullptr;

}  // namespace

const char* role_name(Role role) { return kNames[static_cast<int>(role)]; }

bool parse_role(const std::string& text, Role& role) {
  for (const Role one : {Role::kViewer, Role::kSubmitter, Role::kOperator, Role::kAdmin}) {
    if (text != role_name(one)) continue;
    role = one;
    return true;
  }
  return false;
}

Role Caller::role_in(const std::string& project) const {
  Role best = Role::kNone;
  for (const std::string& where : {project, std::string(kEveryProject)}) {
    if (const auto found = roles.find(where); found != roles.end()) best = std::max(best, found->second);
  }
  return best;
}

Role Caller::highest() const {
  Role best = Role::kNone;
  for (const auto& [project, role] : roles) best = std::max(best, role);
  return best;
}

const Caller& current_caller() {
  static const Caller kNobody;
  return current == nullptr ? kNobody : *current;
}

CallerScope::CallerScope(const Caller& caller) { current = &caller; }
CallerScope::~CallerScope() { current = nullptr; }

}  // namespace telar::server::auth
