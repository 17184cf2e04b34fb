// SPDX-License-Identifier: Apache-2.0
// The toy model of a golden on one rank, built from the names of its parameters: l0, l1, .. are a chain with ReLU
// between; inp, b0, b1, .. blocks with residuals; others are there and never run.
#pragma once

#include "goldens/golden.hpp"
#include "support/api.hpp"

#include <map>

namespace goldens {

struct Param {
  std::string name;
  tpfsdp_param *handle;
  bool trains;
};

// A linear layer. Without weight it is none: a module that only holds parameters.
struct Layer {
  std::string path;
  std::vector<tpfsdp_module *> modules;  // whose forward it is part of, outermost first, without the root
  const Param *weight = nullptr, *bias = nullptr;
  int64_t in = 0, out = 0;
  bool relu = false;      // of the output
  bool residual = false;  // the output is added to the input
};

class Model {
 public:
  // Makes the tree and its parameters; shard() shards it.
  Model(const Golden &golden, tpfsdp_context *context);
  Model(const Model &) = delete;
  Model &operator=(const Model &) = delete;

  void shard();

  tpfsdp_module *root() const { return tree_.root; }
  tpfsdp_module *module(const std::string &path) const;
  const std::vector<Param> &params() const { return params_; }
  const Param &param(const std::string &name) const;
  // The layers that a forward runs, in order.
  std::vector<const Layer *> forward_order() const;

 private:
  tpfsdp_module *make_module(const std::string &path);
  void add_param(const json &described);
  void place(const std::string &full_name, const Param &param);
  std::vector<std::vector<std::string>> units() const;

  const Golden &golden_;
  api::Tree tree_;
  std::map<std::string, tpfsdp_module *> modules_;
  std::vector<Param> params_;
  std::vector<Layer> layers_;
};

// As the golden files write it.
std::string dtype_name(tpfsdp_dtype dtype);
tpfsdp_dtype dtype_named(const std::string &name);  // "": none

bool is_sharded(tpfsdp_param *param);

}  // namespace goldens
