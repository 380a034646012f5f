// What a fake coordinator knows of traces.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "telar/v1/jobs.grpc.pb.h"

namespace telar::client {

struct FakeTraces {
  std::vector<v1::TraceJobRequest> asked;
  std::deque<grpc::Status> answers;                            // Given first, then dropped.
  std::map<std::pair<uint64_t, uint32_t>, std::string> files;  // By step and rank.
  std::vector<v1::ReadTraceRequest> reads;

  // Adds the steps that are wanted, from 40 on where none is named.
  grpc::Status want(const v1::TraceJobRequest& request, v1::Job& job) {
    asked.push_back(request);
    if (!answers.empty()) {
      const grpc::Status status = answers.front();
      answers.pop_front();
      if (!status.ok()) return status;
    }
    for (uint32_t i = 0; i < std::max(request.steps(), 1u); ++i) {
      v1::JobTrace& trace = *job.add_traces();
      trace.set_step((request.step() == 0 ? 40 : request.step()) + i);
      trace.set_state(v1::JobTrace::WANTED);
      trace.set_request_id(request.request_id());
    }
    return grpc::Status::OK;
  }

  // Breaks behind `left` pieces.
  grpc::Status send(const v1::ReadTraceRequest& request, grpc::ServerWriter<v1::TraceChunk>& writer, size_t left) {
    constexpr size_t kChunk = 200;
    reads.push_back(request);
    size_t offset = request.offset();
    for (const auto& [key, text] : files) {
      if (key.first != request.step() || key.second < request.rank()) continue;
      for (; offset < text.size(); offset += kChunk) {
        if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
        v1::TraceChunk chunk;
        chunk.set_rank(key.second);
        chunk.set_offset(offset);
        chunk.set_data(text.substr(offset, kChunk));
        chunk.set_last(offset + kChunk >= text.size());
        writer.Write(chunk);
      }
      offset = 0;
    }
    return grpc::Status::OK;
  }
};

}  // namespace telar::client
