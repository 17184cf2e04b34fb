// SPDX-License-Identifier: Apache-2.0
// What a call is refused with: its text, once the status is the expected one.
#pragma once

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tpfsdp {

template <class Body>
std::string refusal(Status status, Body &&body) {
  try {
    body();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), status) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

inline bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

}  // namespace tpfsdp
