#include "server/jobs/transitions.h"

#include <algorithm>
#include <iterator>

namespace telar::server::jobs {
namespace {

using v1::Job;

struct Transition {
  Job::State from;
  Job::State to;
};

constexpr Transition kLegal[] = {
    {Job::STATE_UNSPECIFIED, Job::QUEUED},  // Accepted.
    {Job::QUEUED, Job::STARTING},           // The gang has its devices.
    {Job::QUEUED, Job::CANCELLED},          // Nothing to end.
    {Job::QUEUED, Job::FAILED},             // What it depends on ended otherwise, or its time is used up.
    {Job::STARTING, Job::RUNNING},          // Every rank runs.
    {Job::STARTING, Job::SUCCEEDED},        // Over before every rank was seen to run.
    {Job::STARTING, Job::RESTARTING},       // A rank or node was lost.
    {Job::STARTING, Job::CANCELLING},       // Asked to.
    {Job::STARTING, Job::FAILING},          // A retry would not help, or is not paid for.
    {Job::RUNNING, Job::SUCCEEDED},         //
    {Job::RUNNING, Job::RESTARTING},        //
    {Job::RUNNING, Job::CANCELLING},        //
    {Job::RUNNING, Job::FAILING},           //
    {Job::RESTARTING, Job::QUEUED},         // The old epoch is gone.
    {Job::RESTARTING, Job::CANCELLING},     //
    {Job::RESTARTING, Job::FAILING},        // The true cause came later, or no budget pays.
    {Job::CANCELLING, Job::CANCELLED},      // The epoch is gone.
    {Job::FAILING, Job::FAILED},            // The epoch is gone.
};

}  // namespace

bool legal(Job::State from, Job::State to) {
  return std::any_of(std::begin(kLegal), std::end(kLegal),
                     [&](const Transition& one) { return one.from == from && one.to == to; });
}

bool terminal(Job::State state) { return state == Job::SUCCEEDED || state == Job::FAILED || state == Job::CANCELLED; }

bool ending(Job::State state) { return state == Job::RESTARTING || state == Job::CANCELLING || state == Job::FAILING; }

bool placed(Job::State state) { return state == Job::STARTING || state == Job::RUNNING || ending(state); }

}  // namespace telar::server::jobs
