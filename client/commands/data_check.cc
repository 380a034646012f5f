#include <ostream>

#include "client/commands/data.h"
#include "client/commands/exit_codes.h"
#include "client/commands/report.h"
#include "client/output/data.h"
#include "client/output/format.h"

namespace telar::client {

using Json = nlohmann::ordered_json;

int data_check(Context& context, const DataOptions& options) {
  const auto request = request_of(options);
  if (!request.ok()) return report_file(context, request.status());
  const auto data = prepare::check_data(*request);
  if (!data.ok()) {
    const int code = report_file(context, data.status());
    return code == kUsage ? kDamaged : code;  // What was typed is right; what stands there is not what it should be.
  }
  Json json = {{"format", data->format},
               {"files", data->files},
               {"file_bytes", data->file_bytes},
               {"tokens", data->source->size()}};
  if (data->documents != nullptr) json["documents"] = data->documents->count();
  if (data->vocabulary > 0) json["vocabulary"] = data->vocabulary;
  if (context.options.output == Output::kJson) {
    context.out() << json.dump(2) << "\n";
  } else if (context.options.output == Output::kYaml) {
    context.out() << json_as_yaml(json);
  } else {
    context.out() << "ok: " << data->format << ", " << data->files << " files, " << bytes(data->file_bytes) << ", ";
    if (data->documents != nullptr) context.out() << data->documents->count() << " documents, ";
    context.out() << data->source->size() << " tokens";
    if (data->vocabulary > 0) context.out() << ", all below the vocabulary of " << data->vocabulary;
    context.out() << "\n";
  }
  return kOk;
}

}  // namespace telar::client
