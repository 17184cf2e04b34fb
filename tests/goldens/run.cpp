// SPDX-License-Identifier: Apache-2.0
#include "goldens/run.hpp"

#include "goldens/calls.hpp"
#include "goldens/compare.hpp"
#include "goldens/event_log.hpp"
#include "goldens/host.hpp"
#include "goldens/optimizer.hpp"
#include "goldens/values.hpp"

#include <set>

namespace goldens {
namespace {

// README.md has 1e-6 for fp32, since sums may have another order; in fp64 that is some units in the last place.
template <class T>
double tolerance(const Golden &golden) {
  // Reductions in low precision round as often as PyTorch's transport does: one step of bf16.
  const std::string reduced = golden.setup.value("mp_policy", json::object()).value("reduce_dtype", "");
  if (reduced == "bf16" || reduced == "f16") return 1.0 / 256;
  return sizeof(T) == 8 ? 1e-14 : 1e-6;
}

// Its type's meaning, as the statuses of the library have it.
const std::map<std::string, tpfsdp_status> kStatusOfError{{"ValueError", TPFSDP_ERR_INVALID_ARGUMENT},
                                                          {"NotImplementedError", TPFSDP_ERR_UNSUPPORTED},
                                                          {"RuntimeError", TPFSDP_ERR_STATE}};

template <class T>
class RankRun {
 public:
  RankRun(const Golden &golden, tpfsdp_context *context, int rank, const std::string &optimizer)
      : golden_(golden),
        rank_(rank),
        optimizer_name_(optimizer),
        model_(golden, context),
        host_(golden, model_),
        optimizer_(optimizer == "adamw"),
        log_(golden, model_, context) {}

  // Throws what differs.
  void go() {
    std::string when = "shard";
    try {
      shard();
      when = "run";
      for (int it = 0; it < golden_.data.at("iters").get<int>(); ++it) iterate(it);
      if (golden_.data.contains("error")) differences_.add("nothing failed, want " + golden_.data["error"].dump());
    } catch (const api::Error &error) {
      if (!golden_.data.contains("error")) throw;
      compare_error(error, when);
      if (when == "shard") return finish();
      logs_.push_back(log_.take());
      API(tpfsdp_fsdp_module_reset_iter_state, model_.root());
    }
    compare_results();
    compare_parameters();
    finish();
  }

 private:
  void shard() {
    model_.shard();
    for (const json &described : golden_.setup.value("after_shard", json::array())) call(described, model_, true);
    for (const Param &param : model_.params()) {
      tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
      API(tpfsdp_param_get_shard_info, param.handle, &info);
      shapes_.push_back(std::vector<int64_t>(info.local_shape, info.local_shape + info.ndim));
    }
  }

  void iterate(int it) {
    const int micro_batches = golden_.data.at("micro_batches");
    const int forwards = golden_.setup.value("forwards_per_backward", 1);
    for (int mb = 0; mb < micro_batches; ++mb) {
      for (const json &described : golden_.setup.value("each_micro_batch", json::array()))
        call(described, model_, mb + 1 == micro_batches);
      std::vector<std::vector<T>> dys;
      T loss = 0;
      for (int f = 0; f < forwards; ++f) {
        const int batch = mb * forwards + f;
        log_.begin("forward it=" + std::to_string(it) + " mb=" + std::to_string(batch));
        const std::vector<T> y = host_.forward(input<T>(rank_, it, batch, host_.input_size()));
        if (it == 0 && batch == 0) output0_ = y;
        dys.push_back(gradient_of_loss(y, target<T>(rank_, it, batch, y.size()), &loss));
      }
      losses_.push_back(loss);
      log_.begin("backward it=" + std::to_string(it) + " mb=" + std::to_string(mb));
      host_.backward(std::move(dys));
    }
    logs_.push_back(log_.take());
    if (it == 0) take_gradients();
    optimizer_.step(model_, host_.own_gradients);
    const bool to_none = golden_.setup.value("zero_grad", "none") != "zero";
    API(tpfsdp_module_zero_grad, model_.root(), to_none);
    host_.own_gradients.clear();
  }

  void take_gradients() {
    std::set<std::string> dtypes;
    for (const Param &param : model_.params()) {
      const auto own = host_.own_gradients.find(param.name);
      if (own != host_.own_gradients.end()) {
        grads_.push_back(own->second);
        dtypes.insert(dtype_name(toy::dtype_of<T>()));
      } else if (api::has_grad(param.handle)) {
        grads_.push_back(values(param, TPFSDP_FACE_GRAD));
        dtypes.insert(dtype_name(api::face(param.handle, TPFSDP_FACE_GRAD).dtype));
      } else {
        grads_.push_back(nullptr);
      }
    }
    grad_dtypes_ = dtypes;
  }

  static json values(const Param &param, tpfsdp_face face) {
    const tpfsdp_view view = api::face(param.handle, face);
    return view.dtype == TPFSDP_DTYPE_I64 ? json(api::values_of<int64_t>(view)) : json(api::values_of<T>(view));
  }

  json want(const std::string &field) const { return golden_.of_rank(field, rank_); }

  void compare_error(const api::Error &error, const std::string &when) {
    const json wanted = golden_.data["error"], ours = golden_.setup.value("error", json::object());
    const auto status = kStatusOfError.find(wanted.at("type"));
    if (status == kStatusOfError.end() || status->second != error.status)
      differences_.add("the error is " + std::string(tpfsdp_error_status_name(error.status)) + ", \"" + error.what() +
                       "\", want " + wanted.dump());
    differences_.equal("the error's time", when, ours.value("when", wanted.at("when").get<std::string>()));
    for (const std::string text : ours.value("texts", json::array())) {
      if (std::string(error.what()).find(text) == std::string::npos)
        differences_.add("the error \"" + std::string(error.what()) + "\" does not say \"" + text + "\"");
    }
  }

  void compare_results() {
    const auto near = [&](const char *field, const json &got) {
      if (const json wanted = want(field); !wanted.is_null())
        differences_.near(field, got, wanted, tolerance<T>(golden_));
    };
    const auto equal = [&](const char *field, const json &got) {
      if (const json wanted = want(field); !wanted.is_null()) differences_.equal(field, got, wanted);
    };
    equal("local_shapes", shapes_);
    differences_.same_lines("log_it0", logs_.at(0), want("log_it0"));
    if (logs_.size() > 1) {
      json wanted = want("log_it1");
      if (wanted.is_null()) wanted = in_second_iteration(want("log_it0"));
      differences_.same_lines("log_it1", logs_.at(1), wanted);
    }
    near("output0", output0_);
    if (optimizer_name_ != "sgd") return;  // later losses are SGD's
    near("losses", losses_);
    near("grad_shards_it0", grads_);
    equal("grad_dtype", grad_dtypes_);
    equal("output_dtype", dtype_name(host_.output_dtype()));
  }

  // A log that is only there once is the same in the second iteration.
  static json in_second_iteration(json log) {
    for (json &line : log) {
      std::string text = line;
      if (const size_t at = text.find(" it=0 "); at != std::string::npos) line = text.replace(at, 6, " it=1 ");
    }
    return log;
  }

  void compare_parameters() {
    const std::string field = "params_after_" + optimizer_name_;
    json wanted = want(field);
    if (wanted.is_null()) wanted = want(field + "_local");  // with parameters that differ between ranks
    if (wanted.is_null()) return;
    if (golden_.setup.contains("mp_policy")) return compare_shards(field, wanted);
    tpfsdp_module *root = model_.root();
    tpfsdp_scope *scope = nullptr;
    API(tpfsdp_scope_open, &root, 1, nullptr, &scope);
    const api::Owned<tpfsdp_scope> held(scope);
    json got = json::object();
    for (const Param &param : model_.params()) got[param.name] = values(param, TPFSDP_FACE_FULL);
    API(tpfsdp_scope_close, scope);
    differences_.near(field, got, wanted, tolerance<T>(golden_));
  }

  // Full values have another dtype than what is trained: this rank's rows of it.
  void compare_shards(const std::string &field, const json &wanted) {
    for (const Param &param : model_.params()) {
      tpfsdp_shard_info info = TPFSDP_INIT(tpfsdp_shard_info);
      API(tpfsdp_param_get_shard_info, param.handle, &info);
      const json got = values(param, TPFSDP_FACE_SHARD);
      int64_t row = 1;
      for (int32_t d = 1; d < info.ndim; ++d) row *= info.global_shape[d];
      const auto first = wanted.at(param.name).begin() + info.offsets[0] * row;
      const json rows(std::vector<json>(first, first + static_cast<int64_t>(got.size())));
      differences_.near(field + "[" + param.name + "]", got, rows, tolerance<T>(golden_));
    }
  }

  void finish() const {
    if (!differences_.none()) throw std::runtime_error("rank " + std::to_string(rank_) + ": " + differences_.text());
  }

  const Golden &golden_;
  int rank_;
  std::string optimizer_name_;
  Model model_;
  Host<T> host_;
  Optimizer<T> optimizer_;
  EventLog log_;
  Differences differences_;
  json shapes_ = json::array(), grads_ = json::array(), grad_dtypes_;
  std::vector<T> output0_, losses_;
  std::vector<json> logs_;  // an iteration each
};

bool computes_in_f64(const Golden &golden) {
  const json &params = golden.data.at("params");
  return std::any_of(params.begin(), params.end(), [](const json &param) { return param.at("dtype") == "f64"; });
}

}  // namespace

Outcome run(const Golden &golden) {
  const std::vector<std::string> missing = missing_features(golden);
  if (!missing.empty()) {
    std::string text = "needs " + missing.front();
    for (size_t i = 1; i < missing.size(); ++i) text += ", " + missing[i];
    return {Outcome::Kind::kNotApplicable, text};
  }
  tpfsdp_context_options options = TPFSDP_INIT(tpfsdp_context_options);
  options.event_capacity = 4096;
  options.arrival_timeout_ms = 20000;
  for (const char *optimizer : {"sgd", "adamw"}) {
    if (optimizer == std::string("adamw") && !golden.data.contains("params_after_adamw")) continue;
    const auto body = [&](tpfsdp_context *context, int32_t rank) {
      if (computes_in_f64(golden)) {
        RankRun<double>(golden, context, rank, optimizer).go();
      } else {
        RankRun<float>(golden, context, rank, optimizer).go();
      }
    };
    try {
      api::run_ranks(golden.data.at("world"), body, options);
    } catch (const std::exception &error) {
      const char *note = golden.has_setup ? "" : " (a case without a set-up)";
      return {Outcome::Kind::kFail, optimizer + std::string(", ") + error.what() + note};
    }
  }
  return {Outcome::Kind::kPass, ""};
}

}  // namespace goldens
