// SPDX-License-Identifier: Apache-2.0
// A golden file: a toy model that ran through PyTorch's own fully_shard, and what came out (README.md has its fields).
// What the case does beyond its model is its set-up: the file's own "setup", or the entry of its name in setups.json.
// All fields may be left out:
//
//   needs                  what the library must be able to do, beside its first features; else the case is n/a
//   units                  the fully_shard calls before the root's, each a path or a list of paths; those that log_it0
//   names reshard_after_forward  of every fully_shard call: null, a bool or a number of ranks ignored, tied names of
//   ignored parameters; {"l1.weight": "l0.weight"}: a further place of a parameter after_shard            calls
//   (calls.hpp) after fully_shard each_micro_batch       calls before each forward; the value "last" is true at the
//   last micro-batch of an iteration order, unused          the modules that a forward runs, in order (all, as params
//   has them), without the unused forwards_per_backward  that many forwards, each on a micro-batch of its own, then one
//   backward of the losses' sum input_requires_grad    false zero_grad              "none", or "zero": gradients stay
//   and are zeroed error                  how ours differs: {"when": "shard", "texts": [parts of the message]}
//
// mesh, mp_policy, input_dtype, shard_dim and clip_grad_norm say what files need that are n/a so far.
#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace goldens {

using nlohmann::json;

struct Golden {
  json data;
  json setup;
  bool has_setup = true;  // false: nobody wrote one, so its fields are the defaults

  std::string name() const { return data.at("case").get<std::string>() + " w" + data.at("world").dump(); }
  // A field, or where ranks differ their entry of the list per_rank_<field>; null: neither is there.
  json of_rank(const std::string &field, int rank) const;
};

// The golden files of a folder, sorted; all .json but its setups.
std::vector<std::filesystem::path> files_in(const std::filesystem::path &folder);

Golden load(const std::filesystem::path &file);

// What the case needs and this runner or the library does not have; empty: it runs.
std::vector<std::string> missing_features(const Golden &golden);

}  // namespace goldens
