/* SPDX-License-Identifier: Apache-2.0
 * The module tree: its names are those of the parameters. Each block is a unit, the root is one with the rest. */
#include "transformer_trainer.h"

#include <stdio.h>
#include <stdlib.h>

/* A new module below another, which keeps it. */
static tpfsdp_status add_module(trainer *t, tpfsdp_module *parent, const char *name, const char *class_name,
                                tpfsdp_module **out_child) {
  tpfsdp_error **error = t->me->error;
  tpfsdp_module_options named = TPFSDP_INIT(tpfsdp_module_options);
  tpfsdp_module *child = NULL;
  tpfsdp_status status;
  named.class_name = class_name;
  TRY(tpfsdp_module_create(t->me->context, &named, &child, error));
  status = tpfsdp_module_add_module(parent, name, child, error);
  tpfsdp_handle_release(child);
  if (status >= 0) status = tpfsdp_module_get_submodule(parent, name, out_child, error);
  return status;
}

/* A parameter over values of this program, in the layer that its size names. */
static tpfsdp_status add_param(trainer *t, int unit, int p, float *values) {
  tpfsdp_error **error = t->me->error;
  const param_size size = param_size_of(&t->work->todo.s, unit, p);
  const int64_t sizes[2] = {size.rows, size.columns};
  tpfsdp_module *layer;
  tpfsdp_param *own = NULL;
  tpfsdp_status status;
  tpfsdp_view view;
  TRY(tpfsdp_module_get_submodule(t->units[unit], size.layer, &layer, error));
  TRY(tpfsdp_tensor_view_init(&view, values, TPFSDP_DTYPE_F32, sizes, size.columns == 1 ? 1 : 2, error));
  TRY(tpfsdp_param_create(&view, 1, &own, error));
  status = tpfsdp_module_register_parameter(layer, size.name, own, error);
  tpfsdp_handle_release(own);
  if (status >= 0) status = tpfsdp_module_get_parameter(layer, size.name, &t->params[unit][p], error);
  return status;
}

static tpfsdp_status build(trainer *t, const param_set *values) {
  static const char *const layers[] = {"norm1", "qkv", "proj", "norm2", "up", "down"};
  tpfsdp_error **error = t->me->error;
  tpfsdp_module_options named = TPFSDP_INIT(tpfsdp_module_options);
  tpfsdp_module *list, *head, *layer;
  named.class_name = "Transformer";
  TRY(tpfsdp_module_create(t->me->context, &named, &t->root, error));
  t->units[0] = t->root;
  TRY(add_module(t, t->root, "embed", "Embedding", &layer));
  TRY(add_module(t, t->root, "blocks", "ModuleList", &list));
  TRY(add_module(t, t->root, "head", "Head", &head));
  TRY(add_module(t, head, "norm", "Affine", &layer));
  for (int b = 0; b < t->work->todo.s.blocks; b++) {
    char name[16];
    snprintf(name, sizeof name, "%d", b);
    TRY(add_module(t, list, name, "Block", &t->units[1 + b]));
    for (int l = 0; l < 6; l++) TRY(add_module(t, t->units[1 + b], layers[l], "Affine", &layer));
  }
  for (int u = 0; u <= t->work->todo.s.blocks; u++)
    for (int p = 0; p < unit_params(u); p++) TRY(add_param(t, u, p, values[u].p[p]));
  return tpfsdp_module_register_parameter(head, "weight", t->params[0][TOKENS], error); /* tied */
}

/* Blocks first: the root's call takes what theirs have left. */
static tpfsdp_status shard(trainer *t) {
  tpfsdp_error **error = t->me->error;
  tpfsdp_fully_shard_options options = TPFSDP_INIT(tpfsdp_fully_shard_options);
  options.unshard_mode = t->work->mode;
  for (int u = t->work->todo.s.blocks; u >= 0; u--) {
    TRY(tpfsdp_fully_shard(&t->units[u], 1, NULL, &options, error));
    for (int p = 0; p < unit_params(u); p++) {
      tpfsdp_view own;
      TRY(tpfsdp_param_get_view(t->params[u][p], TPFSDP_FACE_SHARD, &own, error));
      t->moments[u][p] = calloc((size_t)own.size_bytes * 2 + 1, 1);
      if (!t->moments[u][p]) return TPFSDP_ERR_OUT_OF_MEMORY;
      t->run->optimizer_bytes += 2 * own.size_bytes;
    }
  }
  return tpfsdp_root_prepare(t->root, error);
}

tpfsdp_status tree_create(trainer *t) {
  const shape *s = &t->work->todo.s;
  param_set values[MAX_UNITS];
  tpfsdp_status status;
  float *memory = malloc(sizeof(float) * (size_t)values_count(s));
  if (!memory) return TPFSDP_ERR_OUT_OF_MEMORY;
  initial_values(s, memory);
  param_sets_over(s, memory, values);
  status = build(t, values);
  if (status >= 0) status = shard(t);
  free(memory); /* this rank's rows have been cut out */
  return status;
}
