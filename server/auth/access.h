// Which call wants what: the one table. A method that is not in it is refused.
#pragma once

#include <string>

#include "server/auth/caller.h"

namespace telar::server::auth {

// For whom a call is, and where a person's role has to hold.
enum class Scope {
  kNode,        // A node, for itself: the request's `node` is its name, or it has a rank of the request's `job`.
  kAnyProject,  // A person with the role in whichever project.
  kProject,     // ... in the request's project.
  kOwnJob,      // ... in the project, if the job is the caller's own; for others' jobs as an operator.
  kCluster,     // ... in every project.
};

struct Access {
  const char* method;  // "telar.v1.Jobs/CreateJob"
  Scope scope;
  Role role;          // The least; of a node kNone.
  bool changes;       // Is written to the audit log, whoever calls.
  size_t most_bytes;  // Of a request.
};

// Null: no such method.
const Access* access_of(const std::string& method);

}  // namespace telar::server::auth
