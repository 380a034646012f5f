// Protobuf's text format into a message, with the places that its parser keeps.
#pragma once

#include <string>

#include "client/spec/problem.h"
#include "google/protobuf/message.h"

namespace telar::client {

// Unknown fields are all found at once; the first error of any other kind ends the reading, as in protobuf's parser.
void read_textproto(const std::string& file, const std::string& text, google::protobuf::Message& message,
                    SpecReading& reading);

}  // namespace telar::client
