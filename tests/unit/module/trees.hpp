// SPDX-License-Identifier: Apache-2.0
// Small module trees on a world of one, and what is refused.
#pragma once

#include "comm/run_ranks.hpp"
#include "module/module.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace tpfsdp::trees {

using Names = std::vector<std::string>;

inline void on_context(const std::function<void(const Ref<Context> &)> &body) {
  run_ranks(1, {}, [&](int32_t, int32_t, const Ref<Context> &context) { body(context); });
}

inline Ref<Module> module(const Ref<Context> &context, const std::string &class_name = "Module") {
  ModuleOptions options;
  options.class_name = class_name;
  return make<Module>(context, options);
}

inline Ref<Param> param(const Shape &shape = {2}) {
  return make<Param>(Tensor::zeros(shape, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU), true);
}

inline Ref<Tensor> tensor() { return Tensor::zeros({3}, TPFSDP_DTYPE_F32, TPFSDP_DEVICE_CPU); }

inline std::string refusal(Status status, const std::function<void()> &call) {
  try {
    call();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), status) << failure.what();
    return failure.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

template <class Named>
Names names_of(const std::vector<Named> &named) {
  Names names;
  for (const auto &[name, thing] : named) names.push_back(name);
  return names;
}

}  // namespace tpfsdp::trees
