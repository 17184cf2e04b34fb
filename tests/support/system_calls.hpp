// SPDX-License-Identifier: Apache-2.0
// Counts the system calls of the calling thread. The kernel raises SIGSYS at each while the selector blocks it
// (PR_SET_SYSCALL_USER_DISPATCH); the handler counts the first and lets it and all others run.
#pragma once

// The kernel has it for few processors; sanitizers make calls of their own.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TPFSDP_CAN_SEE_SYSTEM_CALLS 1

#include <sys/prctl.h>
#include <ucontext.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <string>

namespace system_calls {

constexpr int kDispatch = 59, kOff = 0, kOn = 1;  // PR_SET_SYSCALL_USER_DISPATCH
constexpr char kAllow = 0, kBlock = 1;

inline thread_local volatile char selector = kAllow;
inline thread_local volatile int first = -1;

inline void on_call(int, siginfo_t *info, void *context) {
  selector = kAllow;  // from here on, the return from this handler too
  first = info->si_syscall;
  static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP] -= 2;  // made again, and let through
}

// Runs `body`. The number of its first system call, -1 if there is none.
template <class Body>
int first_in(Body &&body) {
  struct sigaction action{}, before{};
  action.sa_sigaction = on_call;
  action.sa_flags = SA_SIGINFO;
  sigset_t only, mask;
  sigemptyset(&only);
  sigaddset(&only, SIGSYS);
  if (sigaction(SIGSYS, &action, &before) != 0 || pthread_sigmask(SIG_UNBLOCK, &only, &mask) != 0 ||
      prctl(kDispatch, kOn, 0, 0, &selector) != 0)
    throw std::runtime_error(std::string("system calls cannot be seen: ") + std::strerror(errno));
  first = -1;
  selector = kBlock;
  body();
  selector = kAllow;
  prctl(kDispatch, kOff, 0, 0, 0);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  sigaction(SIGSYS, &before, nullptr);
  return first;
}

}  // namespace system_calls

#endif
