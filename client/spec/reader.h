// A job spec from a file: YAML, JSON or textproto into one message, with everything that is wrong with it at once.
#pragma once

#include <istream>
#include <string>
#include <vector>

#include "client/spec/problem.h"
#include "google/protobuf/message.h"

namespace telar::client {

enum class Format { kYaml, kJson, kTextproto };

inline constexpr size_t kMostSpecBytes = 1 << 20;

// By the extension (.yaml .yml .json .textproto .txtpb .pbtxt), else by the content.
Format format_of(const std::string& path, const std::string& text);

// Reads `text` into `spec`, which must be empty. `file` only names it in problems. Unknown and duplicate keys, wrong
// kinds, values out of range, text that is not UTF-8: each is a problem, and nothing throws. A field with a problem
// stays unset. A list of one may be written as its element; a mapping without content (`eval:`) is absent.
SpecReading read_spec(const std::string& file, const std::string& text, Format format, google::protobuf::Message& spec);

// The same from a path; "-" reads `in` (standard input) and is called so in problems.
SpecReading read_spec_file(const std::string& path, std::istream& in, google::protobuf::Message& spec);

// "parallel.data=2", "data.train=[a.txt, b.txt]": replaces one field. Lists in brackets, all else as in a file.
std::vector<Problem> set_field(const std::string& assignment, google::protobuf::Message& spec);

}  // namespace telar::client
