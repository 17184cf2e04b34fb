// SPDX-License-Identifier: Apache-2.0
#include "goldens/golden.hpp"

#include "goldens/calls.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>

namespace goldens {
namespace {

namespace fs = std::filesystem;

const char *const kSetups = "setups.json";

std::set<std::string> words(const std::string &text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// What a set-up's "needs" may name and is there.
const auto kFeatures = words(
    "gradient_sync prefetch_lists reshard_setters reshard_size unshard_in_backward reduce_scatter_unused_params "
    "mixed_precision");
const auto kSetupFields = words(
    "needs units reshard_after_forward ignored tied order unused after_shard each_micro_batch "
    "forwards_per_backward input_requires_grad zero_grad error mp_policy input_dtype");
// What a file may say of a case, and the results that are compared, alone or as per_rank_<name>; the last two are not.
const auto kFileFields = words(
    "case world desc iters batch micro_batches params setup error local_shapes output0 output_dtype losses "
    "grad_shards_it0 grad_dtype log_it0 log_it1 params_after_sgd params_after_adamw params_after_sgd_local "
    "diff_vs_plain_sgd diff_vs_plain_adamw");
const auto kDtypes = words("f32 f64 i64");

json read(const fs::path &path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return json::parse(file);
}

// Those of the file's own folder come before those of tests/goldens; null: none has this name.
json setup_of(const std::string &name, const fs::path &folder) {
  for (const fs::path &from : {folder, fs::path(TPFSDP_TESTS_DIR) / "goldens"}) {
    if (!fs::exists(from / kSetups)) continue;
    const json setups = read(from / kSetups);
    if (setups.contains(name)) return setups.at(name);
  }
  return nullptr;
}

}  // namespace

json Golden::of_rank(const std::string &field, int rank) const {
  if (data.contains(field)) return data.at(field);
  if (data.contains("per_rank_" + field)) return data.at("per_rank_" + field).at(static_cast<size_t>(rank));
  return nullptr;
}

std::vector<fs::path> files_in(const fs::path &folder) {
  std::vector<fs::path> files;
  for (const auto &entry : fs::directory_iterator(folder)) {
    const fs::path &path = entry.path();
    if (path.extension() == ".json" && path.filename() != kSetups) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

Golden load(const fs::path &file) {
  Golden golden{read(file), nullptr};
  golden.setup = golden.data.contains("setup") ? golden.data.at("setup")
                                               : setup_of(golden.data.at("case"), fs::absolute(file).parent_path());
  golden.has_setup = !golden.setup.is_null();
  if (!golden.has_setup) golden.setup = json::object();
  return golden;
}

std::vector<std::string> missing_features(const Golden &golden) {
  std::vector<std::string> missing;
  for (const std::string need : golden.setup.value("needs", json::array())) {
    if (!kFeatures.count(need)) missing.push_back(need);
  }
  if (!missing.empty()) return missing;  // fields and calls that go with it are unknown, too
  for (const auto &[field, value] : golden.setup.items()) {
    if (!kSetupFields.count(field)) missing.push_back("the field " + field);
  }
  for (const char *list : {"after_shard", "each_micro_batch"}) {
    for (const json &call : golden.setup.value(list, json::array())) {
      if (!is_known(call)) missing.push_back("the call " + call.at("method").get<std::string>());
    }
  }
  for (const auto &[field, value] : golden.data.items()) {
    const std::string name = field.rfind("per_rank_", 0) == 0 ? field.substr(9) : field;
    if (!kFileFields.count(name)) missing.push_back("the result " + name);
  }
  for (const json &param : golden.data.at("params")) {
    if (!kDtypes.count(param.at("dtype"))) missing.push_back("the dtype " + param.at("dtype").get<std::string>());
    const std::string name = param.at("name");
    if (name.ends_with("weight") && param.at("shape").size() != 2) missing.push_back("a layer with " + name);
  }
  return missing;
}

}  // namespace goldens
