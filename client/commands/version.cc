#include "common/version.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands/call.h"
#include "client/commands/commands.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/format.h"

namespace telar::client {
namespace {

std::string line(const char* who, const v1::Version& version) {
  const std::string commit = version.commit().empty() ? "" : absl::StrCat("+", one_line(version.commit()));
  const std::string build = version.build_type().empty() ? "" : absl::StrCat(" (", one_line(version.build_type()), ")");
  return absl::StrCat(who, " ", one_line(version.version()), commit, build, "\n");
}

}  // namespace

int version(Context& context, bool client_only) {
  v1::Version own;
  own.set_version(TELAR_VERSION);
  own.set_commit(TELAR_COMMIT);
  own.set_build_type(TELAR_BUILD_TYPE);
  const bool document = context.options.output == Output::kJson || context.options.output == Output::kYaml;
  if (client_only) {
    if (!context.print_message(own)) context.out() << line("client", own);
    return kOk;
  }
  if (!document) context.out() << line("client", own) << std::flush;
  const absl::StatusOr<v1::Version> server =
      call(context, &v1::Jobs::StubInterface::GetVersion, v1::GetVersionRequest());
  if (!server.ok()) return report(context, server.status());
  if (!context.print_message(*server)) context.out() << line("coordinator", *server);
  return kOk;
}

}  // namespace telar::client
