// SPDX-License-Identifier: Apache-2.0
#include "goldens/model.hpp"

#include "goldens/values.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace goldens {
namespace {

struct Name {
  explicit Name(const std::string &full) {
    const size_t dot = full.rfind('.');
    above = dot == std::string::npos ? "" : full.substr(0, dot);
    last = dot == std::string::npos ? full : full.substr(dot + 1);
  }
  std::string above, last;
};

size_t volume(const std::vector<int64_t> &shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

// "U l0, l1 FORWARD" names l0 and l1.
std::vector<std::string> paths_of_line(const std::string &line) {
  if (line.size() < 2 || line[1] != ' ' || std::string("UWRP").find(line[0]) == std::string::npos) return {};
  std::istringstream words(line.substr(2));
  std::vector<std::string> paths;
  for (std::string word; words >> word;) {
    const bool goes_on = word.back() == ',';
    if (goes_on) word.pop_back();
    paths.push_back(word);
    if (!goes_on) break;
  }
  return paths.front() == "<root>" || paths.front() == "?" ? std::vector<std::string>() : paths;
}

}  // namespace

Model::Model(const Golden &golden, tpfsdp_context *context) : golden_(golden), tree_(context) {
  modules_[""] = tree_.root;
  const json &described = golden.data.at("params");
  params_.reserve(described.size());  // layers point into it
  for (const json &param : described) add_param(param);
  const json ties = golden.setup.value("tied", json::object());
  for (const auto &[place_name, of] : ties.items()) {
    const Param &tied = param(of);
    API(tpfsdp_module_register_parameter, make_module(Name(place_name).above), Name(place_name).last.c_str(),
        tied.handle);
    place(place_name, tied);
  }
  std::erase_if(layers_, [](const Layer &layer) { return !layer.weight; });
  const auto is_block = [](const Layer &layer) { return layer.path[0] == 'b' && std::isdigit(layer.path[1]); };
  const bool has_blocks = std::any_of(layers_.begin(), layers_.end(), is_block);
  for (Layer &layer : layers_) {
    layer.residual = is_block(layer);
    layer.relu = layer.residual || !has_blocks;
  }
  const std::vector<const Layer *> order = forward_order();
  // No ReLU after the last of a chain.
  if (!has_blocks && !order.empty()) layers_[static_cast<size_t>(order.back() - layers_.data())].relu = false;
}

tpfsdp_module *Model::make_module(const std::string &path) {
  if (const auto known = modules_.find(path); known != modules_.end()) return known->second;
  const Name name(path);
  return modules_[path] = tree_.child(make_module(name.above), name.last);
}

void Model::add_param(const json &described) {
  const std::string name = described.at("name"), dtype = described.at("dtype");
  const std::vector<int64_t> shape = described.at("shape");
  const bool trains = dtype != "i64" && !described.value("frozen", false);
  const int64_t index = described.at("index");
  const size_t count = volume(shape);
  tpfsdp_module *owner = make_module(Name(name).above);
  const std::string leaf = Name(name).last;
  tpfsdp_param *handle = nullptr;
  if (dtype == "i64") {
    const auto values = filled<int64_t>(count, [](int64_t i) { return i; });
    handle = tree_.param(owner, leaf, TPFSDP_DTYPE_I64, shape, values, trains);
  } else if (dtype == "f64") {
    handle = tree_.param(owner, leaf, TPFSDP_DTYPE_F64, shape, parameter_values<double>(index, count), trains);
  } else {
    handle = tree_.param(owner, leaf, TPFSDP_DTYPE_F32, shape, parameter_values<float>(index, count), trains);
  }
  params_.push_back({name, handle, trains});
  place(name, params_.back());
}

void Model::place(const std::string &full_name, const Param &param) {
  const Name name(full_name);
  auto at = std::find_if(layers_.begin(), layers_.end(), [&](const Layer &layer) { return layer.path == name.above; });
  if (at == layers_.end()) {
    Layer layer;
    layer.path = name.above;
    for (std::string path = name.above; !path.empty(); path = Name(path).above)
      layer.modules.insert(layer.modules.begin(), make_module(path));
    at = layers_.insert(layers_.end(), layer);
  }
  if (name.last == "weight") {
    tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
    API(tpfsdp_param_get_info, param.handle, &info);
    at->weight = &param;
    at->out = info.global_shape[0];
    at->in = info.global_shape[1];
  } else if (name.last == "bias") {
    at->bias = &param;
  }
}

tpfsdp_module *Model::module(const std::string &path) const {
  const auto at = modules_.find(path);
  if (at == modules_.end()) throw std::runtime_error("the case names module " + path + ", which is not there");
  return at->second;
}

const Param &Model::param(const std::string &name) const {
  const auto at = std::find_if(params_.begin(), params_.end(), [&](const Param &p) { return p.name == name; });
  if (at == params_.end()) throw std::runtime_error("the case names parameter " + name + ", which is not there");
  return *at;
}

std::vector<const Layer *> Model::forward_order() const {
  const std::vector<std::string> unused = golden_.setup.value("unused", std::vector<std::string>());
  const auto is_part_of = [](const Layer &layer, const std::string &module) {
    return layer.path == module || layer.path.rfind(module + ".", 0) == 0;
  };
  std::vector<const Layer *> all;
  for (const Layer &layer : layers_) {
    const auto holds_it = [&](const std::string &module) { return is_part_of(layer, module); };
    if (std::none_of(unused.begin(), unused.end(), holds_it)) all.push_back(&layer);
  }
  if (!golden_.setup.contains("order")) return all;
  std::vector<const Layer *> in_order;
  for (const std::string module : golden_.setup.at("order")) {
    for (const Layer *layer : all) {
      if (is_part_of(*layer, module)) in_order.push_back(layer);
    }
  }
  return in_order;
}

// Of the set-up, or what the log names; inner ones first, since a call takes all that no earlier one took.
std::vector<std::vector<std::string>> Model::units() const {
  std::vector<std::vector<std::string>> units;
  if (golden_.setup.contains("units")) {
    for (const json &unit : golden_.setup.at("units"))
      units.push_back(unit.is_array() ? unit.get<std::vector<std::string>>() : std::vector<std::string>{unit});
    return units;
  }
  for (const std::string line : golden_.data.value("log_it0", json::array())) {
    const std::vector<std::string> unit = paths_of_line(line);
    if (!unit.empty() && std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  }
  const auto depth = [](const std::vector<std::string> &unit) {
    return std::count(unit.front().begin(), unit.front().end(), '.');
  };
  std::stable_sort(units.begin(), units.end(), [&](const auto &a, const auto &b) { return depth(a) > depth(b); });
  return units;
}

void Model::shard() {
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  const json reshard = golden_.setup.value("reshard_after_forward", json());
  tpfsdp_reshard_kind kind = TPFSDP_RESHARD_AUTO;
  if (reshard.is_boolean()) kind = reshard.get<bool>() ? TPFSDP_RESHARD_ALWAYS : TPFSDP_RESHARD_NEVER;
  if (reshard.is_number()) {
    kind = TPFSDP_RESHARD_SIZE;
    options.reshard_after_forward.size = reshard;
  }
  tpfsdp_mixed_precision_policy policy = TPFSDP_INIT(tpfsdp_mixed_precision_policy);
  if (golden_.setup.contains("mp_policy")) {
    const json &given = golden_.setup.at("mp_policy");
    policy.param_dtype = dtype_named(given.value("param_dtype", ""));
    policy.reduce_dtype = dtype_named(given.value("reduce_dtype", ""));
    policy.output_dtype = dtype_named(given.value("output_dtype", ""));
    if (!given.value("cast_forward_inputs", true)) policy.cast_forward_inputs = TPFSDP_TOGGLE_OFF;
    options.mp_policy = &policy;
  }
  std::vector<tpfsdp_param *> ignored;
  for (const std::string name : golden_.setup.value("ignored", json::array())) ignored.push_back(param(name).handle);
  options.ignored_params = ignored.data();
  options.ignored_param_count = static_cast<int64_t>(ignored.size());
  for (const std::vector<std::string> &unit : units()) {
    std::vector<tpfsdp_module *> modules;
    for (const std::string &path : unit) modules.push_back(module(path));
    tree_.shard(modules, kind, options);
  }
  tree_.shard({tree_.root}, kind, options);
}

namespace {

const std::map<tpfsdp_dtype, std::string> kDtypeNames{{TPFSDP_DTYPE_U8, "u8"},     {TPFSDP_DTYPE_I64, "i64"},
                                                      {TPFSDP_DTYPE_F32, "f32"},   {TPFSDP_DTYPE_F64, "f64"},
                                                      {TPFSDP_DTYPE_BF16, "bf16"}, {TPFSDP_DTYPE_F16, "f16"}};

}  // namespace

std::string dtype_name(tpfsdp_dtype dtype) {
  const auto at = kDtypeNames.find(dtype);
  return at == kDtypeNames.end() ? "dtype " + std::to_string(dtype) : at->second;
}

tpfsdp_dtype dtype_named(const std::string &name) {
  if (name.empty()) return 0;
  for (const auto &[dtype, known] : kDtypeNames) {
    if (known == name) return dtype;
  }
  throw std::runtime_error("no dtype is named " + name);
}

bool is_sharded(tpfsdp_param *param) {
  tpfsdp_param_info info = TPFSDP_INIT(tpfsdp_param_info);
  API(tpfsdp_param_get_info, param, &info);
  return info.is_sharded != 0;
}

}  // namespace goldens
