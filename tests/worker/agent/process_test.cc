#include "worker/agent/process.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace telar::agent {
namespace {

int told = -1;  // Where the child hears that it may end.

void* wait_and_end(void*) {
  char byte = 0;
  _exit(read(told, &byte, 1) == 1 ? 7 : 8);
}

char state_of(int pid) {
  std::string text;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::getline(file, text);
  return text[text.rfind(')') + 2];
}

// A rank that a signal kills while a driver holds one of its threads looks like this: the first thread is gone, and
// nobody can know the exit code yet.
TEST(Process, LivesAsLongAsOneOfItsThreads) {
  int tell[2];
  ASSERT_EQ(pipe(tell), 0);
  const pid_t child = fork();
  if (child == 0) {
    told = tell[0];
    pthread_t other;
    if (pthread_create(&other, nullptr, wait_and_end, nullptr) != 0) _exit(9);
    syscall(SYS_exit, 0);  // This thread alone.
  }
  const auto id = identify(child);
  ASSERT_TRUE(id.has_value());
  while (state_of(child) != 'Z') usleep(1000);
  EXPECT_TRUE(alive(*id));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WNOHANG), 0);
  ASSERT_EQ(write(tell[1], "g", 1), 1);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(alive(*id));  // A zombie, but not reaped yet.
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  close(tell[0]);
  close(tell[1]);
}

}  // namespace
}  // namespace telar::agent
